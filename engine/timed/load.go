package timed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Spec describes a model of any kind: what a fleet's configuration holds, and a
// file of its own that Load reads. Exactly one kind is given: a roofline (Model
// or ModelSpec on Hardware or HardwareSpec), a Preset, or one of the other four.
// With those, Model or ModelSpec may still say how large a sequence's state is.
type Spec struct {
	// Note is for people.
	Note string `yaml:"note,omitempty" json:"note,omitempty"`

	Model        string        `yaml:"model,omitempty" json:"model,omitempty"`
	ModelSpec    *ModelSpec    `yaml:"model_spec,omitempty" json:"model_spec,omitempty"`
	Hardware     string        `yaml:"hardware,omitempty" json:"hardware,omitempty"`
	HardwareSpec *HardwareSpec `yaml:"hardware_spec,omitempty" json:"hardware_spec,omitempty"`
	Options      `yaml:",inline"`

	Preset     string      `yaml:"preset,omitempty" json:"preset,omitempty"`
	Fitted     *Fitted     `yaml:"fitted,omitempty" json:"fitted,omitempty"`
	Polynomial *Polynomial `yaml:"polynomial,omitempty" json:"polynomial,omitempty"`
	Table      *Table      `yaml:"table,omitempty" json:"table,omitempty"`
	Fixed      *Fixed      `yaml:"fixed,omitempty" json:"fixed,omitempty"`
}

// maxFile bounds a file that Load reads.
const maxFile = 4 << 20

// Load reads a Spec and makes its model.
func Load(r io.Reader) (*Model, error) {
	s, err := ReadSpec(r)
	if err != nil {
		return nil, err
	}
	return s.Build()
}

// ReadSpec reads a Spec as YAML (or JSON). Unknown fields are errors. It reads at
// most 4 MiB.
func ReadSpec(r io.Reader) (*Spec, error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("timed: read the timing model: %w", err)
	}
	if len(raw) > maxFile {
		return nil, errors.New("timed: the timing model is larger than 4 MiB")
	}
	var s Spec
	if err := decode(raw, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

func decode(raw []byte, s *Spec) error {
	d := yaml.NewDecoder(bytes.NewReader(raw))
	d.KnownFields(true)
	if err := d.Decode(s); err != nil {
		return fmt.Errorf("timed: read the timing model: %w", err)
	}
	return nil
}

// Write writes the Spec as Load reads it.
func (s *Spec) Write(w io.Writer) error {
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(s); err != nil {
		return err
	}
	return e.Close()
}

// Build makes the model. It does not change the Spec.
func (s *Spec) Build() (*Model, error) {
	model, hw, err := s.find()
	if err != nil {
		return nil, err
	}
	kinds := 0
	for _, given := range []bool{hw != nil, s.Preset != "", s.Fitted != nil, s.Polynomial != nil, s.Table != nil, s.Fixed != nil} {
		if given {
			kinds++
		}
	}
	if kinds != 1 {
		return nil, fmt.Errorf("timed: give one of hardware (with a model), preset, fitted, polynomial, table and fixed, not %d", kinds)
	}
	if hw != nil {
		if model == nil {
			return nil, errors.New("timed: hardware needs a model that runs on it: give model or model_spec")
		}
		return New(model, hw, s.Options)
	}
	o := s.Common
	if model != nil {
		if err := model.Check(); err != nil {
			return nil, err
		}
		if o.Geometry == (Geometry{}) {
			o.Geometry = model.Geometry(s.Options)
		}
	}
	switch {
	case s.Fitted != nil:
		return NewFitted(*s.Fitted, o)
	case s.Polynomial != nil:
		return NewPolynomial(*s.Polynomial, o)
	case s.Table != nil:
		return NewTable(*s.Table, o)
	case s.Fixed != nil:
		return NewFixed(*s.Fixed, o)
	}
	return newPreset(s.Preset, o)
}

// find resolves names.
func (s *Spec) find() (model *ModelSpec, hw *HardwareSpec, err error) {
	if s.Model != "" && s.ModelSpec != nil || s.Hardware != "" && s.HardwareSpec != nil {
		return nil, nil, errors.New("timed: model and model_spec, or hardware and hardware_spec, are both given")
	}
	model, hw = s.ModelSpec, s.HardwareSpec
	if s.Model != "" {
		if model, err = FindModel(s.Model); err != nil {
			return nil, nil, err
		}
	}
	if s.Hardware != "" {
		if hw, err = FindHardware(s.Hardware); err != nil {
			return nil, nil, err
		}
	}
	return model, hw, nil
}

// A Preset is a published model of step times.
type Preset struct {
	Name, Source string
	make         func(o Common) (*Model, error)
}

// Presets lists the published models, in a fixed order.
func Presets() []Preset {
	return []Preset{
		{
			Name:   "dynamo",
			Source: "ai-dynamo/dynamo, lib/mocker, polynomial_prefill_time and polynomial_decode_time; memory of 16384 blocks of 64 tokens, its defaults",
			make: func(o Common) (*Model, error) {
				return NewPolynomial(Polynomial{
					PrefillMS: [3]float64{16.50142, 1.518344e-2, 4.209989e-7},
					DecodeMS:  [3]float64{5.74, 54.01, -25.74},
					LeastMS:   1, Tokens: 16384 * 64,
				}, o)
			},
		},
		{
			Name:   "distserve-opt-13b",
			Source: "LLMServe/DistServe, simdistserve/estimators, OPT-13B on one A100-80; 800 KiB of attention state a token",
			make: func(o Common) (*Model, error) {
				if o.Geometry == (Geometry{}) {
					// OPT-13B: 40 layers, 40 heads of 128, keys and values in half precision.
					o.Geometry.AttentionPerToken = 40 * 2 * 5120 * 2
				}
				return NewFitted(Fitted{
					// Its square is of a prompt's length: twice the pairs.
					StepMS: 18.10, TokenMS: 0.10191, PairMS: 2 * 7.122e-6,
					Decode: []DecodeFit{
						{UpTo: 95, StepMS: 19.93, ContextMS: 6.27e-4, SequenceMS: 0.0385},
						{StepMS: 7.166, ContextMS: 5.80e-4, SequenceMS: 0.1583},
					},
				}, o)
			},
		},
	}
}

func newPreset(name string, o Common) (*Model, error) {
	var names []string
	for _, p := range Presets() {
		if p.Name == name {
			return p.make(o)
		}
		names = append(names, p.Name)
	}
	return nil, fmt.Errorf("timed: no preset %q is built in; there are %s", name, strings.Join(names, ", "))
}
