package state

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// table returns the rows of the first table under the heading of docs/state-format.md, cells trimmed.
func table(t *testing.T, heading string) [][]string {
	t.Helper()
	_, text, ok := strings.Cut(readFile(t, "../docs/state-format.md"), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("docs/state-format.md has no section %q", heading)
	}
	var rows [][]string
	for _, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(line, "|"):
			var row []string
			for _, c := range strings.Split(strings.Trim(line, "|"), "|") {
				row = append(row, strings.Trim(strings.TrimSpace(c), "`"))
			}
			rows = append(rows, row)
		case rows != nil:
			return rows[2:]
		}
	}
	t.Fatalf("section %q has no table", heading)
	return nil
}

func TestDocumentedHeader(t *testing.T) {
	want := []struct {
		field string
		at    int
	}{
		{"magic", offMagic}, {"schema", offSchema}, {"size", offSize}, {"handoff", offHandoff}, {"identity", offIdentity},
		{"part", offPart}, {"unit", offUnit}, {"component", offComponent}, {"codec", offCodec}, {"dtype", offDType},
		{"dtype_v", offDTypeV}, {"flags", offFlags}, {"index", offIndex}, {"layer_first", offLayerFirst},
		{"layer_end", offLayerEnd}, {"token_first", offTokenFirst}, {"token_end", offTokenEnd}, {"positions", offPositions},
		{"length", offLength}, {"checksum", offChecksum}, {"reserved", offReserved}, {"header_crc", offHeaderCRC},
	}
	rows := table(t, "Unit header")
	if len(rows) != len(want) {
		t.Fatalf("%d documented fields, want %d", len(rows), len(want))
	}
	for i, row := range rows {
		end := HeaderSize
		if i+1 < len(want) {
			end = want[i+1].at
		}
		doc := []string{row[0], row[1], row[2]}
		code := []string{strconv.Itoa(want[i].at), strconv.Itoa(end - want[i].at), want[i].field}
		if diff := cmp.Diff(code, doc); diff != "" {
			t.Error(diff)
		}
	}
}

func TestDocumentedRecords(t *testing.T) {
	id, b := testIdentity(), testBinding()
	for _, r := range []struct {
		heading string
		first   []string
		fields  []field
	}{
		{"Identity", []string{"magic"}, id.fields()},
		{"Binding", []string{"magic", "schema"}, b.fields()},
	} {
		code := r.first
		for _, f := range r.fields {
			code = append(code, f.name)
		}
		var doc []string
		for _, row := range table(t, r.heading) {
			doc = append(doc, row[0])
		}
		if diff := cmp.Diff(code, doc); diff != "" {
			t.Errorf("%s: %s", r.heading, diff)
		}
	}
}

func TestDocumentedTags(t *testing.T) {
	text := readFile(t, "../docs/state-format.md")
	for i := tagIdentity; i <= lastRequiredTag; i++ {
		if row := "\n| " + strconv.Itoa(int(i)) + " | " + i.String() + " | "; !strings.Contains(text, row) {
			t.Errorf("docs/state-format.md has no row %q", strings.TrimSpace(row))
		}
	}
	for _, s := range []string{
		"unit lines, " + strconv.Itoa(unitRefSize) + " bytes each",
		"component lines, " + strconv.Itoa(componentRefSize) + " bytes each",
		"\n| 12 + length | " + strconv.Itoa(manifestSealSize) + " | seal |",
		"# State format, schema " + strconv.Itoa(int(SchemaVersion)),
		contextKey, contextIdentity,
	} {
		if !strings.Contains(text, s) {
			t.Errorf("docs/state-format.md does not say %q", s)
		}
	}
}

func TestDocumentedValues(t *testing.T) {
	text := readFile(t, "../docs/state-format.md")
	for _, row := range table(t, "What a handoff is made of") {
		v, err := strconv.Atoi(row[1])
		if err != nil || Kind(v).String() != row[0] {
			t.Errorf("component %s is documented as %s", row[0], row[1])
		}
	}
	for v := DTypeNone; v <= Q8_0; v++ {
		if s := "`" + v.String() + "` " + strconv.Itoa(int(v)); !strings.Contains(text, s) {
			t.Errorf("docs/state-format.md does not say %s", s)
		}
	}
	for _, c := range []Codec{CodecRaw, CodecLlamaSeq} {
		if s := "`" + c.String() + "` " + strconv.Itoa(int(c)); !strings.Contains(text, s) {
			t.Errorf("docs/state-format.md does not say %s", s)
		}
	}
}
