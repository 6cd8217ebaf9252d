package state

import "unicode/utf8"

// Check reports the first thing in the manifest that contradicts itself or exceeds lim: units that
// are not numbered 0, 1, 2, …, components that do not tile the snapshot, a history that does not
// end one token after the position, a first token that does not follow the client's prompt.
func (m *Manifest) Check(lim *Limits) error {
	if m.Parts == 0 || uint32(m.Parts) > lim.Parts || m.Part >= m.Parts {
		return m.refuse(ErrPart, "part", utoa(uint64(m.Part))+" of "+utoa(uint64(m.Parts)), "at most "+utoa(uint64(lim.Parts))+" parts")
	}
	if err := m.checkUnits(lim); err != nil {
		return err
	}
	if err := m.checkComponents(lim); err != nil {
		return err
	}
	if err := m.checkSequence(lim); err != nil {
		return err
	}
	if err := m.checkNames(lim); err != nil {
		return err
	}
	g := &m.Generation
	switch {
	case uint64(len(g.Stop)) > uint64(lim.StopStrings):
		return m.refuse(ErrLimit, "stop", utoa(uint64(len(g.Stop)))+" strings", "at most "+utoa(uint64(lim.StopStrings)))
	case uint64(len(g.Params)) > uint64(lim.ParamsBytes):
		return m.refuse(ErrLimit, "params", utoa(uint64(len(g.Params)))+" bytes", "at most "+utoa(uint64(lim.ParamsBytes)))
	case uint64(len(m.Sampler)) > uint64(lim.SamplerBytes):
		return m.refuse(ErrLimit, "sampler", utoa(uint64(len(m.Sampler)))+" bytes", "at most "+utoa(uint64(lim.SamplerBytes)))
	case uint64(len(m.First.Top)) > uint64(lim.TopTokens):
		return m.refuse(ErrLimit, "first_token.top", utoa(uint64(len(m.First.Top))), "at most "+utoa(uint64(lim.TopTokens)))
	case g.TopLogprobs > lim.TopTokens:
		return m.refuse(ErrLimit, "top_logprobs", utoa(uint64(g.TopLogprobs)), "at most "+utoa(uint64(lim.TopTokens)))
	case m.MTP.Active == (m.MTP.Reason != ""):
		return m.refuse(ErrField, "mtp.reason", "", "a reason exactly when inactive")
	case m.First.Logprob != m.First.Logprob:
		return m.refuse(ErrField, "first_token.logprob", "NaN", "a number")
	}
	for _, s := range g.Stop {
		if s == "" || uint64(len(s)) > uint64(lim.StopBytes) {
			return m.refuse(ErrLimit, "stop", utoa(uint64(len(s)))+" bytes", "1 to "+utoa(uint64(lim.StopBytes)))
		}
		if !utf8.ValidString(s) {
			return m.refuse(ErrField, "stop", "not UTF-8", "UTF-8")
		}
	}
	return nil
}

// checkNames checks the strings of identity, binding and reason as decoding does, so that a source
// does not send what no destination reads.
func (m *Manifest) checkNames(lim *Limits) error {
	fs := append(m.Identity.fields(), m.Binding.fields()...)
	for _, f := range append(fs, field{"mtp.reason", &m.MTP.Reason}) {
		s, ok := f.ptr.(*string)
		if !ok {
			continue
		}
		if uint64(len(*s)) > uint64(lim.NameBytes) {
			return m.refuse(ErrLimit, f.name, utoa(uint64(len(*s)))+" bytes", "at most "+utoa(uint64(lim.NameBytes)))
		}
		if !utf8.ValidString(*s) {
			return m.refuse(ErrField, f.name, "not UTF-8", "UTF-8")
		}
	}
	return nil
}

func (m *Manifest) checkUnits(lim *Limits) error {
	if uint64(len(m.Units)) > uint64(lim.Units) {
		return m.refuse(ErrLimit, "units", utoa(uint64(len(m.Units))), "at most "+utoa(uint64(lim.Units)))
	}
	for i := range m.Units {
		u := &m.Units[i]
		if uint64(u.Index) != uint64(i) {
			return m.refuse(ErrUnits, "units", "index "+utoa(uint64(u.Index)), "index "+utoa(uint64(i)))
		}
		kind := u.Unit == UnitPage && u.Component.Paged() || u.Unit == UnitSnapshot && u.Component == KindNone
		if !kind || u.Layers.Len() == 0 || u.Tokens.Len() == 0 || u.Length == 0 {
			return m.refuse(ErrUnits, "units", u.Unit.String()+" of "+u.Component.String()+" layers "+u.Layers.String()+" tokens "+u.Tokens.String(), "a unit")
		}
		if u.Length > lim.UnitBytes {
			return m.refuse(ErrLimit, "units", utoa(u.Length)+" bytes", "at most "+utoa(lim.UnitBytes))
		}
		if u.Tokens.End > m.Position {
			return m.refuse(ErrTokens, "units", u.Tokens.String(), "a range before "+utoa(uint64(m.Position)))
		}
	}
	return nil
}

// checkComponents makes sure that every snapshot is tiled by its components, and that components
// lie in snapshots only.
func (m *Manifest) checkComponents(lim *Limits) error {
	if uint64(len(m.Components)) > uint64(lim.Components) {
		return m.refuse(ErrLimit, "components", utoa(uint64(len(m.Components))), "at most "+utoa(uint64(lim.Components)))
	}
	next := 0
	for i := range m.Units {
		u := &m.Units[i]
		if u.Unit != UnitSnapshot {
			continue
		}
		var at uint64
		for ; next < len(m.Components) && m.Components[next].Unit == u.Index; next++ {
			r := &m.Components[next]
			if !r.Kind.Bytes() || r.Kind.Paged() || r.Layers.Len() == 0 {
				return m.refuse(ErrComponents, "components", r.Kind.String(), "a component of a snapshot")
			}
			if r.Offset != at || r.Length == 0 || r.Length > u.Length-at {
				return m.refuse(ErrComponents, r.Kind.String(), "offset "+utoa(r.Offset)+" length "+utoa(r.Length),
					"offset "+utoa(at)+" within "+utoa(u.Length))
			}
			at += r.Length
		}
		if at != u.Length {
			return m.refuse(ErrComponents, "components", utoa(at)+" bytes", utoa(u.Length))
		}
	}
	if next != len(m.Components) {
		r := &m.Components[next]
		return m.refuse(ErrComponents, r.Kind.String(), "in unit "+utoa(uint64(r.Unit)), "in a snapshot, in order")
	}
	return nil
}

func (m *Manifest) checkSequence(lim *Limits) error {
	n := uint64(len(m.History))
	switch {
	case n > uint64(lim.History):
		return m.refuse(ErrLimit, "history", utoa(n), "at most "+utoa(uint64(lim.History)))
	case m.Position == 0 || n != uint64(m.Position)+1:
		return m.refuse(ErrPosition, "history", utoa(n)+" tokens at position "+utoa(uint64(m.Position)), "one token more than the position")
	case uint64(m.Usage.Prompt)+uint64(m.First.Index) != uint64(m.Position):
		return m.refuse(ErrPosition, "first_token.index", utoa(uint64(m.First.Index))+" after a prompt of "+utoa(uint64(m.Usage.Prompt)), "position "+utoa(uint64(m.Position)))
	case m.Usage.Prompt == 0 || m.Usage.Cached > m.Position:
		return m.refuse(ErrPosition, "usage", utoa(uint64(m.Usage.Cached))+" cached of "+utoa(uint64(m.Usage.Prompt)), "at most the position")
	case m.First.Index >= m.Generation.MaxTokens:
		return m.refuse(ErrPosition, "max_tokens", utoa(uint64(m.Generation.MaxTokens)), "more than "+utoa(uint64(m.First.Index)))
	}
	for _, t := range m.History {
		if t < 0 {
			return m.refuse(ErrField, "history", "a negative token", "token ids")
		}
	}
	return nil
}

func (m *Manifest) refuse(reason error, field, got, want string) error {
	return &Error{Reason: reason, What: "manifest", Part: int64(m.Part), Unit: -1, Field: field, Got: got, Want: want}
}
