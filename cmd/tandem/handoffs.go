package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-llm/tandem/telemetry"
	"github.com/tandem-llm/tandem/telemetry/timeline"
)

type handoffsCmd struct {
	URL    string `name:"url" default:"http://127.0.0.1:8080" help:"Address of the gateway's HTTP API."`
	Limit  int    `default:"20" help:"How many to show, the newest ones."`
	Last   bool   `help:"Draw a timeline of the newest one."`
	ID     string `name:"id" help:"Draw a timeline of this one: the number in the table, a handoff's id, or a request's, of which all attempts are shown." placeholder:"ID"`
	Follow bool   `short:"f" help:"Go on with those that come."`
	JSON   bool   `name:"json" help:"Print records as JSON lines."`
}

// followPause is the time between two questions for what is new.
const followPause = 500 * time.Millisecond

// maxListBytes bounds a gateway's answer: a full ring has a tenth of it.
const maxListBytes = 64 << 20

func (c *handoffsCmd) Run(a *app) error {
	if c.Last && c.ID != "" || c.Follow && (c.Last || c.ID != "") {
		return usageError{errors.New("--last, --id and --follow exclude each other")}
	}
	if err := between("limit", c.Limit, 1, telemetry.DefaultHandoffs); err != nil {
		return err
	}
	base, err := gatewayURL(c.URL)
	if err != nil {
		return usageError{err}
	}
	client := &handoffsClient{base: base, http: &http.Client{Timeout: 10 * time.Second}}
	style := terminalStyle(a.stdout)
	switch {
	case c.Last:
		list, err := client.list(a.ctx, telemetry.Query{Limit: 1})
		if err == nil && len(list.Handoffs) == 0 {
			err = errors.New("the gateway has served nothing yet")
		}
		if err != nil {
			return err
		}
		return c.print(a.stdout, list.Handoffs, style, true, false)
	case c.ID != "":
		found, err := client.find(a.ctx, c.ID)
		if err != nil {
			return err
		}
		return c.print(a.stdout, found, style, true, false)
	}
	list, err := client.list(a.ctx, telemetry.Query{Limit: c.Limit})
	if err != nil {
		return err
	}
	if err := c.print(a.stdout, list.Handoffs, style, false, false); err != nil || !c.Follow {
		return err
	}
	return c.follow(a, client, list.Newest, style)
}

// follow prints what comes until it is interrupted. A gateway that goes away is waited for.
func (c *handoffsCmd) follow(a *app, client *handoffsClient, newest uint64, style timeline.Style) error {
	tick := time.NewTicker(followPause)
	defer tick.Stop()
	away := false
	for {
		select {
		case <-a.ctx.Done():
			return nil
		case <-tick.C:
		}
		list, err := client.list(a.ctx, telemetry.Query{After: newest, Limit: telemetry.DefaultHandoffs})
		switch {
		case a.ctx.Err() != nil:
			return nil
		case err != nil:
			if !away {
				fmt.Fprintln(a.stderr, "tandem:", err, "- waiting for it")
			}
			away = true
			continue
		}
		away = false
		if list.Newest < newest { // restarted: it counts from 1 again
			newest = 0
			continue
		}
		if len(list.Handoffs) > 0 {
			newest = list.Handoffs[0].Seq
		}
		if err := c.print(a.stdout, list.Handoffs, style, false, true); err != nil {
			return err
		}
	}
}

// print writes records, which come newest first, in the order in which they were made.
func (c *handoffsCmd) print(w io.Writer, list []*telemetry.Handoff, style timeline.Style, draw, bare bool) error {
	list = slices.Clone(list)
	slices.Reverse(list)
	switch {
	case c.JSON:
		enc := json.NewEncoder(w)
		for _, h := range list {
			if err := enc.Encode(h); err != nil {
				return err
			}
		}
		return nil
	case !draw:
		return timeline.Table(w, list, style, bare)
	}
	for i, h := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := timeline.Draw(w, h, style); err != nil {
			return err
		}
	}
	return nil
}

// gatewayURL takes an address with or without a scheme.
func gatewayURL(s string) (*url.URL, error) {
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("--url: use the address of a gateway, such as http://127.0.0.1:8080")
	}
	return u, nil
}

// handoffsClient asks one gateway.
type handoffsClient struct {
	base *url.URL
	http *http.Client
}

func (c *handoffsClient) list(ctx context.Context, q telemetry.Query) (*telemetry.HandoffList, error) {
	values := url.Values{"limit": {strconv.Itoa(q.Limit)}}
	if q.After > 0 {
		values.Set("after", strconv.FormatUint(q.After, 10))
	}
	if q.ID != "" {
		values.Set("id", q.ID)
	}
	at := c.base.JoinPath("tandem", "handoffs")
	at.RawQuery = values.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var cause *url.Error
		if errors.As(err, &cause) {
			err = cause.Err
		}
		return nil, fmt.Errorf("no gateway answers at %s: start one with 'tandem up', or name it with --url: %w", c.base, err)
	}
	defer resp.Body.Close()
	var out telemetry.HandoffList
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxListBytes))
	if err == nil && resp.StatusCode == http.StatusOK {
		err = json.Unmarshal(body, &out)
	}
	if err != nil || resp.StatusCode != http.StatusOK || slices.Contains(out.Handoffs, nil) {
		return nil, fmt.Errorf("%s answers (%s), but not as a gateway of this release does: name another with --url", c.base, resp.Status)
	}
	return &out, nil
}

// find looks for one record by number, or for those of a handoff or request by id.
func (c *handoffsClient) find(ctx context.Context, id string) ([]*telemetry.Handoff, error) {
	q := telemetry.Query{ID: id, Limit: telemetry.DefaultHandoffs}
	number, err := strconv.ParseUint(strings.TrimPrefix(id, "#"), 10, 64)
	if err == nil && number > 0 {
		q = telemetry.Query{After: number - 1, Limit: telemetry.DefaultHandoffs}
	}
	list, err := c.list(ctx, q)
	if err != nil {
		return nil, err
	}
	found := list.Handoffs
	if number > 0 {
		found = slices.DeleteFunc(found, func(h *telemetry.Handoff) bool { return h.Seq != number })
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no handoff %q among the newest %d; 'tandem handoffs' lists them", id, telemetry.DefaultHandoffs)
	}
	return found, nil
}

// terminalStyle is plain unless w is a terminal. NO_COLOR and TERM=dumb are respected, and COLUMNS,
// which shells set.
func terminalStyle(w io.Writer) timeline.Style {
	var s timeline.Style
	s.Width, _ = strconv.Atoi(os.Getenv("COLUMNS"))
	s.Width = min(max(s.Width, 0), 400)
	f, ok := w.(*os.File)
	if !ok {
		return s
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 || os.Getenv("TERM") == "dumb" {
		return s
	}
	s.Color = os.Getenv("NO_COLOR") == ""
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(os.Getenv(name)); v != "" {
			s.Blocks = strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
			break
		}
	}
	return s
}
