//go:build !unix

package lane

import "math"

// cpuSeconds is not known here; figures that need it are left out.
func cpuSeconds() float64 { return math.NaN() }
