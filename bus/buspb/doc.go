// Package buspb holds the messages between gateways and workers, generated from bus.proto.
//
// The comments in bus.proto are the reference. Never print a message of this package: commands and statuses carry token
// ids, text and tickets.
//
// To generate the code again, install protoc (Debian: protobuf-compiler) and run go generate here; the Go plugin is
// built from the protobuf version that go.mod names.
package buspb

//go:generate sh -c "go build -o ../../dist/protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go && protoc --plugin=../../dist/protoc-gen-go --go_out=. --go_opt=paths=source_relative bus.proto"
