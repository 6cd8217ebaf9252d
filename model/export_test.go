package model

import "github.com/tandem-llm/tandem/gguf"

// Describe inspects a head that was read from elsewhere.
func Describe(path string, head *gguf.File) (*Model, error) {
	return describe([]string{path}, []*gguf.File{head})
}
