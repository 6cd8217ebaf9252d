package wire

import "testing"

func TestSockets(t *testing.T) {
	for _, lane := range []LaneMode{LaneTLS, LaneQUIC, LaneAuto} {
		for _, pull := range []bool{false, true} {
			t.Run(string(lane)+"/"+mode(pull), func(t *testing.T) {
				a, b := netNodes(t, func(c *Config) { c.Lane = lane })
				for range 3 {
					f := start(t, a, b, pull, false)
					f.run(t, 1, 100<<10, 3<<20, 5<<20+17, 4<<20, 4<<20, 4<<20, 4<<20)
					if got := f.snd.Stats().Lane; lane != LaneAuto && got != string(lane) || lane == LaneAuto && got != "tls" {
						t.Errorf("lane %q", got)
					}
				}
				idle(t, a, b)
			})
		}
	}
}
