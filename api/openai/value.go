package openai

import (
	"math"
	"strconv"
)

// readString reads a string of at most limit bytes.
func readString(param string, raw []byte, limit int) (string, *Error) {
	if raw[0] != '"' {
		return "", wrongType(param, "a string")
	}
	v := unquote(raw)
	if len(v) > limit {
		return "", invalid(CodeInvalidValue, param, "Invalid '%s': longer than %d bytes.", param, limit)
	}
	return v, nil
}

func readBool(param string, raw []byte) (bool, *Error) {
	switch string(raw) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, wrongType(param, "a boolean")
}

// readInt reads an integer in [low, high]. Fractions and exponents are no integers.
func readInt(param string, raw []byte, low, high int64) (int64, *Error) {
	if c := raw[0]; c != '-' && (c < '0' || c > '9') {
		return 0, wrongType(param, "an integer")
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		for _, c := range raw {
			if c == '.' || c == 'e' || c == 'E' {
				return 0, wrongType(param, "an integer")
			}
		}
		return 0, invalid(CodeInvalidValue, param, "Invalid '%s': out of range.", param)
	}
	if v < low || v > high {
		if low == high {
			return 0, invalid(CodeInvalidValue, param, "Invalid '%s': it must be %d.", param, low)
		}
		return 0, invalid(CodeInvalidValue, param, "Invalid '%s': it must be between %d and %d.", param, low, high)
	}
	return v, nil
}

// readFloat reads a finite number in [low, high].
func readFloat(param string, raw []byte, low, high float64) (float64, *Error) {
	if c := raw[0]; c != '-' && (c < '0' || c > '9') {
		return 0, wrongType(param, "a number")
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || math.IsInf(v, 0) {
		return 0, invalid(CodeInvalidValue, param, "Invalid '%s': out of range.", param)
	}
	if v < low || v > high {
		return 0, invalid(CodeInvalidValue, param, "Invalid '%s': it must be between %g and %g.", param, low, high)
	}
	return v, nil
}

// readArray splits an array of at most limit elements.
func readArray(param string, raw []byte, limit int) ([][]byte, *Error) {
	if raw[0] != '[' {
		return nil, wrongType(param, "an array")
	}
	list, ok := elements(raw, limit)
	if !ok {
		return nil, invalid(CodeInvalidValue, param, "Invalid '%s': more than %d elements.", param, limit)
	}
	return list, nil
}

func readObject(param string, raw []byte) ([]member, *Error) {
	if raw[0] != '{' {
		return nil, wrongType(param, "an object")
	}
	return members(raw), nil
}

func at(param string, i int) string { return param + "[" + strconv.Itoa(i) + "]" }
