package install

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// yzma's installer, run rather than imported: its package pulls in dozens of
// modules (archive formats, cloud storage) that Tandem has no other use for.
// The second value is the release with the digest of its manifest, which names
// the digest of every asset.
const (
	yzmaTool   = "github.com/hybridgroup/yzma@v1.28.0"
	yzmaPinned = Release + "@sha256:4c980eec03f12db33a8de414cbd9b2afecfe996c8c1daac63e16b074d2ffc5ab"
)

// toolTimeout bounds one run of npm or go, which may download and build.
const toolTimeout = 15 * time.Minute

// fromNPM downloads the package with the npm client, which checks the tarball
// against the registry's digest, and installs the libraries in it.
func (in *installer) fromNPM(ctx context.Context) (Lib, error) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return Lib{}, &Error{Kind: ErrTool, Subject: "npm", Err: err, Next: "install Node.js, which brings npm"}
	}
	stage, err := in.stage()
	if err != nil {
		return Lib{}, err
	}
	defer os.RemoveAll(stage)
	pkg := in.plat.npmPackage()
	in.say("downloading %s@%s with npm", pkg, npmVersion)
	// Run in the empty stage directory: no project configuration applies.
	out, err := runTool(ctx, stage, nil, npm, "pack", pkg+"@"+npmVersion, "--pack-destination", stage, "--ignore-scripts", "--loglevel", "error")
	if err != nil {
		return Lib{}, &Error{Kind: ErrFetch, Subject: "npm pack " + pkg + "@" + npmVersion, Err: err, Next: "check npm's registry and network"}
	}
	tarballs, err := filepath.Glob(filepath.Join(stage, "*.tgz"))
	if err != nil || len(tarballs) != 1 {
		return Lib{}, &Error{Kind: ErrFetch, Subject: "npm pack " + pkg, Err: fmt.Errorf("left %d tarballs: %s", len(tarballs), clip(out)), Next: "update npm"}
	}
	if err := in.checkIntegrity(pkg, tarballs[0]); err != nil {
		return Lib{}, err
	}
	libs := filepath.Join(stage, "libs")
	if err := in.extract(tarballs[0], libs); err != nil {
		return Lib{}, err
	}
	return in.adopt(libs, SourceNPM)
}

// checkIntegrity compares a tarball with the pin of its package, if there is one.
func (in *installer) checkIntegrity(pkg, tarball string) error {
	want, ok := in.pins[pkg]
	if !ok {
		return nil
	}
	f, err := os.Open(tarball)
	if err != nil {
		return &Error{Kind: ErrCache, Subject: tarball, Err: err}
	}
	defer f.Close()
	h := sha512.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxTarball)); err != nil {
		return &Error{Kind: ErrCache, Subject: tarball, Err: err}
	}
	if got := "sha512-" + base64.StdEncoding.EncodeToString(h.Sum(nil)); got != want {
		return &Error{Kind: ErrIntegrity, Subject: pkg + "@" + npmVersion, Err: fmt.Errorf("got %s, want %s", got, want), Next: "check npm's registry, or use --source yzma or --from DIR"}
	}
	return nil
}

// fromYzma has the go tool build and run yzma's installer.
func (in *installer) fromYzma(ctx context.Context) (Lib, error) {
	gotool, err := exec.LookPath("go")
	if err != nil {
		return Lib{}, &Error{Kind: ErrTool, Subject: "go", Err: err, Next: "install Go"}
	}
	stage, err := in.stage()
	if err != nil {
		return Lib{}, err
	}
	defer os.RemoveAll(stage)
	in.say("downloading llama.cpp %s with yzma's installer (go run %s)", Release, yzmaTool)
	down := filepath.Join(stage, "download")
	// GOFLAGS and GOWORK of the surrounding project must not change how a
	// foreign module at a fixed version is built.
	_, err = runTool(ctx, stage, []string{"GOFLAGS=", "GOWORK=off", "YZMA_LIB="}, gotool, "run", yzmaTool, "install",
		"--lib", down, "--version", yzmaPinned, "--processor", in.plat.processor, "--verify", "require", "--quiet")
	if err != nil {
		return Lib{}, &Error{Kind: ErrFetch, Subject: "go run " + yzmaTool + " install", Err: err, Next: "check the network and Go's module proxy"}
	}
	libs := filepath.Join(stage, "libs")
	if err := in.copyLibraries(in.locate(down), libs); err != nil {
		return Lib{}, err
	}
	return in.adopt(libs, SourceYzma)
}

// runTool runs a command in dir and returns its bounded output. The error
// carries the last lines the tool printed.
func runTool(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 5 * time.Second // npm's children may hold the pipe
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		if text := clip(out.Bytes()); strings.TrimSpace(text) != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return nil, err
	}
	return out.Bytes(), nil
}

// tail is a writer that keeps the last 16 to 32 KiB.
type tail struct{ bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	const keep = 16 << 10
	n := len(p)
	if len(p) > keep {
		p = p[len(p)-keep:]
	}
	if t.Len()+len(p) > 2*keep {
		t.Next(t.Len() - keep)
	}
	_, err := t.Buffer.Write(p)
	return n, errors.Join(err)
}
