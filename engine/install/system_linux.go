package install

import (
	"bufio"
	"os"
	"strings"

	"github.com/ebitengine/purego"
)

// systemLibraries are what llama.cpp's libraries and their Go bindings need of
// the machine, with the package that brings them in each family.
var systemLibraries = []struct {
	file     string
	packages map[string]string
}{
	{"libffi.so.8", map[string]string{"debian": "libffi8", "fedora": "libffi", "suse": "libffi8", "arch": "libffi", "alpine": "libffi"}},
	{"libstdc++.so.6", map[string]string{"debian": "libstdc++6", "fedora": "libstdc++", "suse": "libstdc++6", "arch": "gcc-libs", "alpine": "libstdc++"}},
}

// CheckSystem reports, as an *[Error] matching [ErrSystemLibrary] with the
// distribution's install command, a shared library that llama.cpp or its
// bindings need and the dynamic loader does not find. On macOS and 64-bit x86
// Windows the bindings carry libffi themselves and there is nothing to check.
func CheckSystem() error {
	for _, lib := range systemLibraries {
		handle, err := purego.Dlopen(lib.file, purego.RTLD_LAZY)
		if err != nil {
			return &Error{Kind: ErrSystemLibrary, Subject: lib.file, Err: err, Next: installCommand(osRelease(), lib.packages, lib.file)}
		}
		if err := purego.Dlclose(handle); err != nil {
			return &Error{Kind: ErrSystemLibrary, Subject: lib.file, Err: err}
		}
	}
	return nil
}

// osRelease returns the distribution's id followed by those it is like.
func osRelease() []string {
	f, err := os.Open("/etc/os-release")
	if err != nil {
		return nil
	}
	defer f.Close()
	var id, like string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		key, value, _ := strings.Cut(sc.Text(), "=")
		switch value = strings.Trim(value, `"'`); key {
		case "ID":
			id = value
		case "ID_LIKE":
			like = value
		}
	}
	return append([]string{id}, strings.Fields(like)...)
}

// installCommand is the command that brings a library to a distribution.
func installCommand(ids []string, packages map[string]string, file string) string {
	for _, id := range ids {
		switch id {
		case "debian", "ubuntu":
			return "run: apt-get install " + packages["debian"]
		case "fedora", "rhel", "centos":
			return "run: dnf install " + packages["fedora"]
		case "suse", "opensuse":
			return "run: zypper install " + packages["suse"]
		case "arch":
			return "run: pacman -S " + packages["arch"]
		case "alpine":
			return "run: apk add " + packages["alpine"]
		}
	}
	return "install your distribution's package with " + file
}
