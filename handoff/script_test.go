package handoff

import "fmt"

func stateChange[S interface {
	comparable
	String() string
}](before, after S, res Result, err error) string {
	switch {
	case err != nil:
		return fmt.Sprintf("error %v", err)
	case res == NoOp:
		return "no-op in " + after.String()
	case before == after:
		return after.String()
	}
	return before.String() + " -> " + after.String()
}

func sourceActionText(acts []SourceAction) string           { return fmt.Sprintf(" %+v", acts) }
func destinationActionText(acts []DestinationAction) string { return fmt.Sprintf(" %+v", acts) }
func requestActionText(acts []RequestAction) string         { return fmt.Sprintf(" %+v", acts) }
