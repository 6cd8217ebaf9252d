#!/bin/sh
# Replays the same workload with Tandem and with inference-sim (BLIS), in turn, and
# prints CPU time per output token and peak memory of both. Not part of CI: it
# fetches and builds the peer.
set -eu

repository=https://github.com/inference-sim/inference-sim
commit=f90a1e3a # the peer at the time of docs/replay.md's figures

usage() {
  cat <<'END_USAGE'
usage: scripts/peer-replay.sh [options]

Eight H100 instances of Llama-3.1-8B, 512 tokens in, 128±64 out, 40 requests a
second: colocated on eight, and five for prompts with three for answers over shared
links. The peer runs with its fastest settings.

  --runs N       turns that count (default 5)
  --requests N   requests of a run (default 10000)
  --tandem FILE  the program to measure (default: built from this checkout)
  --peer FILE    inference-sim's program (default: fetched and built into the cache)

Needs GNU time, and git and go to build. The cache is ${XDG_CACHE_HOME:-~/.cache}/tandem/peer.
END_USAGE
}

say() { printf 'peer: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tandem/peer
runs=5 requests=10000 tandem='' peer=''
while [ $# -gt 0 ]; do
  case $1 in
  --runs) runs=$2 ;;
  --requests) requests=$2 ;;
  --tandem) tandem=$2 ;;
  --peer) peer=$2 ;;
  -h | --help)
    usage
    exit 0
    ;;
  *)
    usage >&2
    exit 2
    ;;
  esac
  shift 2 || die "an option needs a value"
done
for tool in time awk sort; do
  command -v "$tool" >/dev/null || die "$tool is needed"
done
timer=$(command -v time)

source=$cache/inference-sim
if [ -z "$peer" ]; then
  command -v go >/dev/null || die "go is needed"
  command -v git >/dev/null || die "git is needed"
  if [ ! -d "$source/.git" ]; then
    say "fetching $repository"
    mkdir -p "$cache"
    git clone --quiet "$repository" "$source.new"
    mv "$source.new" "$source"
  fi
  git -C "$source" checkout --quiet "$commit"
  say "building inference-sim"
  (cd "$source" && go build -o blis .)
  peer=$source/blis
fi
if [ -z "$tandem" ]; then
  mkdir -p "$cache"
  go build -o "$cache/tandem" ./cmd/tandem
  tandem=$cache/tandem
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

work="poisson rate=40 input=512 output=normal:128:64:1:256 requests=$requests"

# measure NAME COMMAND... appends CPU seconds and MiB to the file of that name.
measure() {
  name=$1
  shift
  "$timer" -f '%U %S %M' -o "$scratch/time" "$@" >"$scratch/out" 2>"$scratch/err" ||
    { cat "$scratch/err" >&2; die "$1 failed"; }
  awk '{ print $1 + $2, $3 / 1024 }' "$scratch/time" >>"$scratch/$name"
}

ours() {
  measure "tandem-$1" "$tandem" --config= replay run --config "examples/replay/$1.yaml" --workload "$work" --json
}

# theirs looks for the tables of its models beside itself.
theirs() {
  name=$1
  shift
  measure "peer-$name" env -C "$(dirname "$peer")" "$peer" run --model meta-llama/Llama-3.1-8B-Instruct --hardware H100 --tp 1 \
    --latency-model roofline --num-instances 8 --rate 40 --num-requests "$requests" \
    --prompt-tokens 512 --prompt-tokens-stdev 0 --prompt-tokens-min 512 --prompt-tokens-max 512 \
    --output-tokens 128 --output-tokens-stdev 64 --output-tokens-min 1 --output-tokens-max 256 \
    --cache-signal-delay 0 --lazy-generation "$@"
}

i=0
while [ "$i" -lt "$runs" ]; do
  i=$((i + 1))
  say "turn $i of $runs"
  ours colocated
  theirs colocated
  ours disaggregated
  theirs disaggregated --prefill-instances 5 --decode-instances 3 --pd-decider always \
    --pd-transfer-bandwidth 50 --pd-transfer-contention
done

# median FILE COLUMN
median() { awk -v c="$2" '{ print $c }' "$scratch/$1" | sort -n | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

tokens=$((requests * 128))
printf '%s requests, %s output tokens, medians of %s turns\n' "$requests" "$tokens" "$runs"
for mode in colocated disaggregated; do
  for side in tandem peer; do
    cpu=$(median "$side-$mode" 1)
    mib=$(median "$side-$mode" 2)
    spread=$(awk 'NR == 1 || $1 < least { least = $1 } $1 > most { most = $1 } END { print least " to " most }' "$scratch/$side-$mode")
    printf '%-14s %-7s %7.2f s of CPU (%s), %.3f µs per output token, %.0f MiB\n' "$mode" "$side" "$cpu" "$spread" \
      "$(awk -v s="$cpu" -v n="$tokens" 'BEGIN { print s * 1e6 / n }')" "$mib"
  done
done
