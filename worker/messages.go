package worker

import (
	"errors"

	"github.com/tandem-llm/tandem/bus/buspb"
	"github.com/tandem-llm/tandem/handoff"
	"github.com/tandem-llm/tandem/sample"
	"github.com/tandem-llm/tandem/state"
	"github.com/tandem-llm/tandem/wire"
)

var errHandoffID = errors.New("worker: a handoff id has 16 bytes")

func parseID(b []byte) (handoff.ID, error) {
	var id handoff.ID
	if len(b) != len(id) {
		return id, errHandoffID
	}
	copy(id[:], b)
	return id, nil
}

func (s side) message() buspb.Side {
	if s == sideDestination {
		return buspb.Side_SIDE_DESTINATION
	}
	return buspb.Side_SIDE_SOURCE
}

func endpointMessage(e wire.Endpoint) *buspb.Endpoint {
	return &buspb.Endpoint{Quic: e.QUIC, Tls: e.TLS, Lanes: uint32(e.Lanes)}
}

func endpointOf(m *buspb.Endpoint) wire.Endpoint {
	return wire.Endpoint{QUIC: m.GetQuic(), TLS: m.GetTls(), Lanes: int(m.GetLanes())}
}

func generationParams(g *buspb.Generation) state.Generation {
	return state.Generation{
		MaxTokens: g.MaxTokens, MinTokens: g.MinTokens, Stop: g.Stop, IgnoreEOS: g.IgnoreEos,
		Logprobs: g.Logprobs, TopLogprobs: g.TopLogprobs,
	}
}

func samplingParams(g *buspb.Generation) sample.Params {
	s := g.GetSampling()
	return sample.Params{
		Temperature: s.GetTemperature(), TopK: int(s.GetTopK()), TopP: s.GetTopP(), MinP: s.GetMinP(), Seed: s.GetSeed(),
		RepetitionPenalty: s.GetRepetitionPenalty(), PresencePenalty: s.GetPresencePenalty(),
		FrequencyPenalty: s.GetFrequencyPenalty(), PenaltyWindow: int(s.GetPenaltyWindow()),
		LogitBias: s.GetLogitBias(), Logprobs: g.Logprobs, TopLogprobs: int(g.TopLogprobs),
	}
}
