package install

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckSystem(t *testing.T) {
	if err := CheckSystem(); err != nil {
		t.Fatal(err)
	}
	saved := systemLibraries
	defer func() { systemLibraries = saved }()
	systemLibraries = append(saved[:1:1], saved[0])
	systemLibraries[1].file = "libtandem-missing.so.1"
	err := CheckSystem()
	var e *Error
	if !errors.Is(err, ErrSystemLibrary) || !errors.As(err, &e) || e.Subject != "libtandem-missing.so.1" || e.Next == "" {
		t.Errorf("error %v, want ErrSystemLibrary with a command", err)
	}
}

func TestInstallCommand(t *testing.T) {
	for ids, want := range map[string]string{
		"ubuntu debian":                   "apt-get install libffi8",
		"debian":                          "apt-get install libffi8",
		"linuxmint ubuntu debian":         "apt-get install libffi8",
		"rocky rhel centos fedora":        "dnf install libffi",
		"opensuse-tumbleweed opensuse":    "zypper install libffi8",
		"arch":                            "pacman -S libffi",
		"alpine":                          "apk add libffi",
		"":                                "your distribution's package with libffi.so.8",
		"something-nobody-has-heard-of-x": "your distribution's package with libffi.so.8",
	} {
		got := installCommand(strings.Fields(ids), systemLibraries[0].packages, systemLibraries[0].file)
		if !strings.HasSuffix(got, want) {
			t.Errorf("%s: %q, want %q", ids, got, want)
		}
	}
}
