package kv

import (
	"errors"
	"fmt"
)

// ErrConfig is what every *ConfigError wraps.
var ErrConfig = errors.New("kv: impossible shape")

// ConfigError says which field of a Config cannot be.
type ConfigError struct {
	Field string
	Value int
	Want  string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("kv: %s is %d, want %s", e.Field, e.Value, e.Want)
}

// Unwrap returns ErrConfig.
func (e *ConfigError) Unwrap() error { return ErrConfig }
