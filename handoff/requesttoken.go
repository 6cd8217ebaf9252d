package handoff

// canCommit reports whether the destination of the current attempt may have
// become the owner: both sides were asked.
func (m *Request) canCommit() bool {
	return m.askedSource && m.askedDestination
}

// commit makes the destination the owner: the one client-visible commit, on the
// current attempt's first acknowledgement or destination token (invariant 9).
func (m *Request) commit(dst []RequestAction) []RequestAction {
	m.state = RequestDecoding
	m.until = m.deadline
	dst = m.unbook(BookPrefill, dst)
	dst = m.dropReuse(ReasonRebound, dst)
	m.rebinding = false
	return append(dst, RequestAction{Kind: ActionMoveAffinity, Handoff: m.handoff})
}

func (m *Request) committed(f *RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	switch {
	case !m.canCommit():
		return m.refuse(dst, f, ErrImpossible, "Reserve and Prefill first")
	case m.state == RequestDecoding:
		return dst, NoOp, nil
	}
	return m.commit(dst), Applied, nil
}

func (m *Request) tokenOut(f *RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	switch {
	case f.Index < 0 || m.maxTokens > 0 && f.Index >= m.maxTokens:
		return m.refuse(dst, f, ErrInvalid, "a token index within the request's limit")
	case f.Side == RoleDestination && !m.canCommit():
		return m.refuse(dst, f, ErrImpossible, "Reserve and Prefill first")
	case f.Side == RoleSource && !m.askedSource:
		return m.refuse(dst, f, ErrImpossible, "Prefill first")
	case f.Side == RoleSource && m.policy != Disabled && f.Index > m.base:
		return m.refuse(dst, f, ErrImpossible, "the destination's word: a source samples one token")
	}
	result := NoOp
	if f.Side == RoleDestination && m.state != RequestDecoding {
		dst, result = m.commit(dst), Applied
	}
	if f.Side != m.Owner() || f.Index != m.next {
		// Not the owner, already given to the client, or one before it was lost:
		// statuses are cumulative and repeated.
		return dst, result, nil
	}
	dst = append(dst, RequestAction{Kind: ActionForward, Index: m.next})
	m.next++
	if m.policy == Disabled && m.rebinding {
		m.rebinding = false
		dst = m.dropReuse(ReasonRebound, dst)
	}
	if f.Finish == 0 && m.next == m.maxTokens {
		f.Finish = FinishLength
	}
	if f.Finish != 0 {
		m.finishedBy = f.Side
		return m.finish(StatusCompleted, f, dst), Applied, nil
	}
	return dst, Applied, nil
}

func (m *Request) finished(f *RequestFact, dst []RequestAction) ([]RequestAction, Result, error) {
	switch {
	case f.Finish == 0 || f.Index < 0:
		return m.refuse(dst, f, ErrInvalid, "a finish reason and the number of tokens")
	case f.Side == RoleDestination && !m.canCommit():
		return m.refuse(dst, f, ErrImpossible, "Reserve and Prefill first")
	case f.Side == RoleSource && !m.askedSource:
		return m.refuse(dst, f, ErrImpossible, "Prefill first")
	}
	result := NoOp
	if f.Side == RoleDestination && m.state != RequestDecoding {
		dst, result = m.commit(dst), Applied
	}
	if f.Side != m.Owner() || f.Index != m.next {
		return dst, result, nil // tokens before the end are still missing
	}
	m.finishedBy = f.Side
	return m.finish(StatusCompleted, f, dst), Applied, nil
}
