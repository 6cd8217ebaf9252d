// Command tandem serves large language models with prefill and decode in
// different processes, and carries the tools around that: installing the
// engine, making and inspecting models, and managing the mesh certificates.
//
// This package holds flags and wiring only, one file per subcommand; what the
// commands do lives in the packages of the module.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// Exit codes of the program. They are part of its interface: scripts rely on
// them, and docs/cli.md lists them.
const (
	exitOK      = 0
	exitFailure = 1   // the command ran and failed
	exitUsage   = 2   // flags, arguments, environment or configuration file are wrong
	exitSignal  = 130 // stopped by an interrupt before the work was done
)

type cli struct {
	Config string `help:"Configuration file (YAML) in place of the default ones; empty: none. Keys are flag names; a command's own flags may stand below the command's name." placeholder:"FILE"`

	Up         upCmd         `cmd:"" help:"Serve a model on this machine: gateway, prefill and decode worker processes, ready for a request."`
	Gateway    gatewayCmd    `cmd:"" help:"Run a gateway: HTTP API, routing, and the control bus unless --nats names one."`
	Worker     workerCmd     `cmd:"" help:"Run one worker: an engine in the role prefill, decode or both."`
	Handoffs   handoffsCmd   `cmd:"" help:"Show the handoffs that a gateway saw last, or a timeline of one."`
	Engine     engineCmd     `cmd:"" help:"Install or show the llama.cpp libraries."`
	Model      modelCmd      `cmd:"" help:"Make or inspect GGUF models."`
	Verify     verifyCmd     `cmd:"" help:"Verify that a model's sequences continue in another process exactly, and certify it."`
	Mesh       meshCmd       `cmd:"" help:"Make the certificate authority and the identities of gateways and workers."`
	Bus        busCmd        `cmd:"" help:"Print the configuration of an external NATS server."`
	Replay     replayCmd     `cmd:"" help:"Replay a trace on a fleet that does not exist yet: the same core on a virtual clock (docs/replay.md)."`
	Bench      benchCmd      `cmd:"" help:"Measure this machine, the data plane or an endpoint (docs/bench.md)."`
	Profile    profileCmd    `cmd:"" help:"Measure an engine's steps and write the timing model that replay reads (docs/timing.md)."`
	PairPeer   pairPeerCmd   `cmd:"" name:"pair-peer" hidden:"" help:"The other process of verify and bench handoff."`
	Version    versionCmd    `cmd:"" help:"Print the version, the engine build and the state schema."`
	Completion completionCmd `cmd:"" help:"Print a completion script for bash, zsh or fish."`
}

// app is what every command gets: its streams and a context that ends at the
// first interrupt.
type app struct {
	ctx    context.Context
	stdout io.Writer
	stderr io.Writer
	config string // the value of --config
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second interrupt ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c cli
	exit := -1
	paths, err := configPaths(args)
	if err != nil {
		fmt.Fprintln(stderr, "tandem:", err)
		return exitUsage
	}
	parser, err := kong.New(&c,
		kong.Name("tandem"),
		kong.Description("Serve large language models with prefill and decode on different machines."),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.Writers(stdout, stderr),
		kong.DefaultEnvars("TANDEM"),
		kong.Configuration(loadConfig, paths...),
		kong.Exit(func(code int) { exit = code; panic(exitPanic{}) }),
	)
	if err != nil {
		fmt.Fprintln(stderr, "tandem:", err)
		return exitUsage
	}
	if len(args) > 0 && args[0] == completeVerb {
		for _, word := range complete(parser.Model, args[1:]) {
			fmt.Fprintln(stdout, word)
		}
		return exitOK
	}
	code := func() (code int) {
		// kong exits the process from inside Parse for --help; the panic
		// brings that back here so that run stays an ordinary function.
		defer func() {
			switch r := recover(); r.(type) {
			case nil:
			case exitPanic:
				code = exit
			default:
				panic(r)
			}
		}()
		kctx, err := parser.Parse(args)
		if err != nil {
			var pe *kong.ParseError
			if errors.As(err, &pe) && pe.Context != nil {
				_ = pe.Context.PrintUsage(true)
				fmt.Fprintln(stderr)
			}
			fmt.Fprintln(stderr, "tandem:", err)
			return exitUsage
		}
		return exitCode(ctx, kctx.Run(&app{ctx: ctx, stdout: stdout, stderr: stderr, config: c.Config}), stderr)
	}()
	return code
}

type exitPanic struct{}

// usageError marks an error that the user mends on the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func exitCode(ctx context.Context, err error, stderr io.Writer) int {
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintln(stderr, "tandem:", err)
		return exitUsage
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "tandem: interrupted")
		return exitSignal
	default:
		fmt.Fprintln(stderr, "tandem:", err)
		return exitFailure
	}
}
