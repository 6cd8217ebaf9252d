#!/bin/sh
# Builds llama-server from the llama.cpp sources that belong to Tandem's libraries,
# and runs the comparisons of docs/bench.md. Not part of CI: the build takes minutes.
set -eu

package=node-llama-cpp@3.22.1 # has the sources of llama.cpp v0.5.0 as a git bundle
version=0.5.0

usage() {
  cat <<'END'
usage: scripts/peer.sh build
       scripts/peer.sh compare [serve|transfer] [options]

build     Build llama-server once into the user's cache, linked so that it runs on the
          same libllama and libggml as Tandem. Needs npm, git, cmake, a C++ compiler,
          and about 15 minutes of an idle machine. A finished build is used again.
compare   Build if need be, then run Tandem and llama-server in turn:
          serve     decode tokens/s with 1 and 8 streams, and prefill tokens/s, of a tiny
                    model (overhead alone) and a dense one (a step of realistic cost)
          transfer  a gigabyte of state from process to process, against saving a slot to
                    a file in memory and restoring it in a second llama-server
          Without a name it runs both.

options of compare:
  --runs N       turns that count (default 5)
  --threads N    computing threads of every process (default: all cores; transfer: one
                 for each of the two processes)
  --model FILE   serve: this model instead of the two seeded ones
  --mib N        transfer: least state to move (default 1024)
  --out DIR      write the reports there as JSON too
  --tandem FILE  the program to measure (default: built from this checkout)

The cache is ${XDG_CACHE_HOME:-~/.cache}/tandem/peer.
END
}

say() { printf 'peer: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tandem
peer=$cache/peer
bin=$peer/build/bin
run=$peer/run # what is run: the server, its own libraries, and links to Tandem's
scratch=
pids=

cleanup() {
  for p in $pids; do kill "$p" 2>/dev/null || true; done
  for p in $pids; do wait "$p" 2>/dev/null || true; done
  pids=
  if [ -n "$scratch" ]; then rm -rf "$scratch"; fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# stop_servers ends what start_tandem and start_server started.
stop_servers() {
  for p in $pids; do kill "$p" 2>/dev/null || true; done
  for p in $pids; do wait "$p" 2>/dev/null || true; done
  pids=
}

need() {
  for tool; do
    command -v "$tool" >/dev/null || die "$tool is needed"
  done
}

build() {
  if [ ! -x "$bin/llama-server" ]; then
    need npm git cmake c++ tar
    mkdir -p "$peer"
    if [ ! -d "$peer/src/.git" ]; then
      say "fetching $package"
      rm -rf "$peer/package" "$peer/src.new"
      (cd "$peer" && npm pack --silent "$package" >/dev/null && tar -xzf node-llama-cpp-*.tgz package/llama/gitRelease.bundle)
      git clone --quiet "$peer/package/llama/gitRelease.bundle" "$peer/src.new"
      mv "$peer/src.new" "$peer/src"
      rm -rf "$peer/package" "$peer"/node-llama-cpp-*.tgz
    fi
    generator="Unix Makefiles"
    if command -v ninja >/dev/null; then generator=Ninja; fi
    say "building llama-server into $peer/build; the log is $peer/build.log"
    {
      cmake -S "$peer/src" -B "$peer/build" -G "$generator" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
        -DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON -DGGML_BACKEND_DL=ON -DGGML_CPU=OFF -DGGML_NATIVE=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF \
        -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_TOOLS_INSTALL=OFF &&
        cmake --build "$peer/build" --target llama-server --parallel "$(nproc)"
    } >"$peer/build.log" 2>&1 || die "the build failed; see $peer/build.log"
  fi
  # The libraries that compute come from Tandem's installation; the server finds
  # backends beside itself.
  libs=$(libraries)
  rm -rf "$run.new"
  mkdir -p "$run.new"
  cp "$bin/llama-server" "$bin/libllama-server-impl.so" "$bin/libllama-common.so" "$bin/libmtmd.so" "$run.new"
  for f in "$libs"/libllama.* "$libs"/libggml*; do ln -s "$f" "$run.new"; done
  rm -rf "$run"
  mv "$run.new" "$run"
  LD_LIBRARY_PATH=$run "$run/llama-server" --version 2>&1 | grep -q "version: $version" ||
    die "$run/llama-server does not say version $version"
  say "llama-server is $run/llama-server"
}

# program sets $tandem.
program() {
  if [ -z "$tandem" ]; then
    need go
    mkdir -p "$peer"
    tandem=$peer/tandem
    go build -o "$tandem" ./cmd/tandem
  fi
  [ -x "$tandem" ] || die "$tandem cannot be run"
}

# libraries prints the directory of Tandem's libraries.
libraries() {
  "$tandem" --config= engine show --json | sed -n 's/.*"dir" *: *"\([^"]*\)".*/\1/p' | grep . ||
    die "Tandem has no libraries here: run 'tandem engine install'"
}

# start_server PORT ARGUMENTS starts a llama-server and waits until it is ready.
# One model thread pool, no prompt cache: every request is computed.
start_server() {
  port=$1
  shift
  LD_LIBRARY_PATH=$run "$run/llama-server" --host 127.0.0.1 --port "$port" --no-kv-unified --cache-ram 0 \
    --cache-type-k f16 --cache-type-v f16 --fit off --batch-size 2048 --ubatch-size 512 "$@" \
    >"$scratch/llama-server-$port.log" 2>&1 &
  pids="$pids $!"
  await $! "http://127.0.0.1:$port/health" "$scratch/llama-server-$port.log"
}

# start_tandem PORT ARGUMENTS starts one worker that serves whole requests with all
# of its slots, which is what role prefill does in mode colocated (role both keeps
# half of them for sequences that come from elsewhere), and its gateway.
start_tandem() {
  port=$1
  shift
  "$tandem" --config= up --listen "127.0.0.1:$port" --prefill 1 --decode 0 --mode colocated "$@" \
    >"$scratch/tandem.log" 2>&1 &
  pids="$pids $!"
  await $! "http://127.0.0.1:$port/readyz" "$scratch/tandem.log"
}

# await PID URL LOG waits until the URL answers.
await() {
  tries=0
  until curl -sf -o /dev/null "$2"; do
    kill -0 "$1" 2>/dev/null || {
      tail -n 20 "$3" >&2
      die "it ended before it was ready"
    }
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || die "not ready within 2 minutes; see $3"
    sleep 0.2
  done
}

# measure NAME ARGUMENTS runs a benchmark, as a table and, with --out, as JSON.
measure() {
  title=$1
  shift
  say "$title"
  if [ -n "$out" ]; then
    "$tandem" --config= bench "$@" --json >"$out/$title.json"
    say "$out/$title.json"
  else
    "$tandem" --config= bench "$@"
    echo
  fi
}

# serve_model NAME FILE REQUESTS compares one model.
serve_model() {
  slots=8 context=2048
  start_tandem 18080 --model "$2" --slots $slots --context $context --threads "$threads"
  start_server 18081 --model "$2" --parallel $slots --ctx-size $((slots * context)) --threads "$threads" \
    --threads-batch "$threads" --cont-batching --no-cache-prompt
  set -- "$1" "$2" "$3" --url http://127.0.0.1:18080/v1 --name tandem --compare-url http://127.0.0.1:18081/v1 \
    --compare-name llama-server --prompt-tokens --runs "$runs"
  name=$1 requests=$3
  shift 3
  measure "$name-1-stream" serve "$@" --concurrency 1 --requests "$requests" --prompt-length 32 --output-length 128
  measure "$name-8-streams" serve "$@" --concurrency 8 --requests $((8 * requests)) --prompt-length 32 --output-length 128
  measure "$name-prefill" serve "$@" --concurrency 1 --requests "$requests" --prompt-length 1024 --output-length 1
  stop_servers
}

compare_serve() {
  threads=${threads_given:-$(nproc)}
  if [ -n "$model" ]; then
    serve_model model "$model" 2
    return
  fi
  "$tandem" --config= model new --arch llama --out "$scratch/tiny.gguf" >&2
  serve_model tiny "$scratch/tiny.gguf" 16
  "$tandem" --config= model new --arch dense --out "$scratch/dense.gguf" >&2
  serve_model dense "$scratch/dense.gguf" 2
}

compare_transfer() {
  threads=${threads_given:-1}
  "$tandem" --config= model new --arch wide-attention --layers 32 --kv-heads 16 --out "$scratch/wide.gguf" >&2
  # A token keeps 256 KiB; a prompt is a multiple of 256 tokens.
  cells=$((mib * 4 + 512))
  files=$scratch/slots
  mkdir "$files"
  for port in 18082 18083; do
    start_server $port --model "$scratch/wide.gguf" --parallel 1 --ctx-size $cells --threads "$threads" --threads-batch "$(nproc)" \
      --slot-save-path "$files/"
  done
  measure transfer handoff --parts transfer --model "$scratch/wide.gguf" --transfer-mib "$mib" --threads "$threads" --runs "$runs" \
    --slot-save-url http://127.0.0.1:18082 --slot-restore-url http://127.0.0.1:18083
  stop_servers
}

verb=${1:---help}
[ $# -eq 0 ] || shift
runs=5 threads_given='' model='' mib=1024 out='' tandem='' what=''
case $verb in
build | compare) ;;
-h | --help | help)
  usage
  exit 0
  ;;
*)
  usage >&2
  exit 2
  ;;
esac
while [ $# -gt 0 ]; do
  case $1 in
  serve | transfer)
    [ "$verb" = compare ] || die "build takes no $1"
    what="$what $1"
    shift
    continue
    ;;
  -h | --help)
    usage
    exit 0
    ;;
  --runs | --threads | --model | --mib | --out | --tandem) [ $# -gt 1 ] || die "$1 needs a value" ;;
  *)
    usage >&2
    exit 2
    ;;
  esac
  case $1 in
  --runs) runs=$2 ;;
  --threads) threads_given=$2 ;;
  --model) model=$2 ;;
  --mib) mib=$2 ;;
  --out) out=$2 ;;
  --tandem) tandem=$2 ;;
  esac
  shift 2
done

program
build
[ "$verb" = compare ] || exit 0
need curl
[ -z "$out" ] || mkdir -p "$out"
# Files of slots belong into memory: a disk would be slower still.
scratch=$(mktemp -d "$(if [ -d /dev/shm ]; then echo /dev/shm; else echo "${TMPDIR:-/tmp}"; fi)/tandem-peer.XXXXXX")
for w in ${what:-serve transfer}; do "compare_$w"; done
