package preflight

import "syscall"

// library is the file that ffi opens.
const library = "libffi.so.8"

// message is what is said instead of a panic.
const message = "tandem: " + library + " is not installed, which llama.cpp is called through;" +
	" install it with: apt-get install libffi8 (Debian, Ubuntu), dnf install libffi (Fedora, RHEL)," +
	" zypper install libffi8 (openSUSE) or pacman -S libffi (Arch)\n"

// cacheFile is the loader's cache; without it the loader is not glibc's, or this
// system does not use it the usual way.
const cacheFile = "/etc/ld.so.cache"

var directories = []string{
	"/lib", "/usr/lib", "/lib64", "/usr/lib64",
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
	"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
}

func init() {
	path, _ := syscall.Getenv("LD_LIBRARY_PATH")
	if missing(cacheFile, path, directories) {
		syscall.Write(2, []byte(message))
		syscall.Exit(1)
	}
}

// missing reports whether the library certainly cannot be found.
func missing(cache, libraryPath string, dirs []string) bool {
	names, ok := readFile(cache)
	if !ok || contains(names, "\x00"+library+"\x00") || contains(names, "/"+library+"\x00") {
		return false
	}
	for libraryPath != "" {
		var dir string
		dir, libraryPath = cut(libraryPath)
		if exists(dir + "/" + library) {
			return false
		}
	}
	for _, dir := range dirs {
		if exists(dir + "/" + library) {
			return false
		}
	}
	return true
}

// maxCache bounds what is read of the loader's cache.
const maxCache = 16 << 20

func readFile(path string) (string, bool) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	defer syscall.Close(fd)
	var all []byte
	buf := make([]byte, 64<<10)
	for len(all) < maxCache {
		n, err := syscall.Read(fd, buf)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return "", false
		}
		if n == 0 {
			return string(all), true
		}
		all = append(all, buf[:n]...)
	}
	return "", false
}

func exists(path string) bool {
	var st syscall.Stat_t
	return syscall.Stat(path, &st) == nil
}

// cut and contains stand in for package strings, which is initialized later.
func cut(list string) (first, rest string) {
	for i := range len(list) {
		if list[i] == ':' || list[i] == ';' {
			return list[:i], list[i+1:]
		}
	}
	return list, ""
}

func contains(s, part string) bool {
	for i := 0; i+len(part) <= len(s); i++ {
		if s[i:i+len(part)] == part {
			return true
		}
	}
	return false
}
