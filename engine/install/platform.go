package install

import (
	"fmt"
	"regexp"
)

// platform is what one GOOS/GOARCH calls things.
type platform struct {
	goos, goarch string
	name         string // npm's platform name, also the cache directory's
	prefix, ext  string // of the libraries the loader opens
	processor    string // yzma's build for it
}

// npmIntegrity pins the npm tarballs seen when this release of Tandem was made:
// the client checks a tarball against its registry, this checks the registry.
// A platform without a pin is accepted on the client's check and the version
// check of its contents.
var npmIntegrity = map[string]string{
	"@node-llama-cpp/linux-x64":   "sha512-5uCCDNqWCNfaAm8aR/Uzxbo4HBpKgNF91kCHPepKhgMgV2OAmatoefbOlMihsqCiH2Od35E/eUHQCFbfRBJuOg==",
	"@node-llama-cpp/linux-arm64": "sha512-W+7naKCXX9/eEjjFmRS8vvx91QyLXDbeFexxZc3bh/PtQABZgmRL3C0AtYYXn4YGTj/3Qor4lWZn2tpjZFPLdQ==",
}

// npmVersion is the @node-llama-cpp release that ships Release.
const npmVersion = "3.22.1"

func (p platform) npmPackage() string { return "@node-llama-cpp/" + p.name }

// library is the file the loader opens for a short name such as "llama".
func (p platform) library(short string) string { return p.prefix + short + p.ext }

func platformOf(goos, goarch string) (platform, error) {
	p := platform{goos: goos, goarch: goarch, prefix: "lib", ext: ".so", processor: "cpu"}
	switch goos + "/" + goarch {
	case "linux/amd64":
		p.name = "linux-x64"
	case "linux/arm64":
		p.name = "linux-arm64"
	case "darwin/arm64":
		p.name, p.ext, p.processor = "mac-arm64-metal", ".dylib", "metal"
	case "darwin/amd64":
		p.name, p.ext = "mac-x64", ".dylib"
	case "windows/amd64":
		p.name, p.prefix, p.ext = "win-x64", "", ".dll"
	case "windows/arm64":
		p.name, p.prefix, p.ext = "win-arm64", "", ".dll"
	default:
		return platform{}, &Error{Kind: ErrPlatform, Subject: goos + "/" + goarch, Next: "run Tandem on linux, darwin or windows, amd64 or arm64"}
	}
	return p, nil
}

// required are the short names the bindings open.
var required = []string{"llama", "ggml", "ggml-base"}

// libraryFile says whether a file belongs to an installation. macOS builds
// carry their backends as .so next to .dylib; Metal kernels may be separate.
var libraryFile = regexp.MustCompile(`^(lib[A-Za-z0-9_.+-]+\.(so|dylib)(\.[0-9]+)*|(ggml|llama|mtmd)[A-Za-z0-9_.+-]*\.dll|[A-Za-z0-9_-]+\.(metal|metallib)|_nlcBuildMetadata\.json)$`)

// versioned matches the names a release gives the library short, from which the
// unversioned name is made: libllama.v0.5.0.so, libllama.metal.v0.5.0.dylib,
// libllama.so.0, libllama.0.dylib.
func (p platform) versioned(short string) *regexp.Regexp {
	name, ext := regexp.QuoteMeta(p.prefix+short), regexp.QuoteMeta(p.ext)
	if p.goos == "linux" {
		return regexp.MustCompile(fmt.Sprintf(`^%s((\.[a-z0-9]+)?\.v[0-9.]+[0-9]%s|%s(\.[0-9]+)+)$`, name, ext, ext))
	}
	return regexp.MustCompile(fmt.Sprintf(`^%s(\.[a-z0-9]+)?(\.v?[0-9.]*[0-9])%s$`, name, ext))
}
