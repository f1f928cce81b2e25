// Tests of the store of images for `go test -fuzz`, and for `go test` on their own inputs and those of the
// file that TRAINYARD_REFERENCES names. This file is put into the package by an overlay.
package images

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestReferences reads the table that the kubelet's reader of references is tested by.
func TestReferences(t *testing.T) {
	content, err := os.ReadFile(os.Getenv("TRAINYARD_REFERENCES"))
	if err != nil {
		t.Skip("no table of references:", err)
	}
	var table []struct {
		Given, Full, File string
	}
	if err := json.Unmarshal(content, &table); err != nil || len(table) < 30 {
		t.Fatal(len(table), err)
	}
	for _, each := range table {
		name, err := parseName(each.Given)
		if each.Full == "" {
			if err == nil || reasonOf(err) != invalid {
				t.Errorf("%q: %v, %v", each.Given, name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", each.Given, err)
		} else if name.String() != each.Full || escape(name.String()) != each.File {
			t.Errorf("%q: %q in %q, not %q in %q", each.Given, name, escape(name.String()), each.Full, each.File)
		}
	}
}

func FuzzReference(f *testing.F) {
	for _, text := range []string{"busybox", "index.docker.io/a:1", "localhost:5000/a/b@sha256:" + strings.Repeat("a", 64), "[::1]/a"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, err := parseName(text)
		if err != nil {
			return
		}
		again, err := parseName(name.String())
		if err != nil || again.String() != name.String() {
			t.Fatalf("%q: %q, then %v, %v", text, name, again, err)
		}
		if file := escape(name.String()); strings.ContainsAny(file, "/\x00") || file == "." || file == ".." {
			t.Fatalf("%q: the file %q", text, file)
		}
	})
}

// FuzzLayer unpacks layers beside a folder in which nothing may change.
func FuzzLayer(f *testing.F) {
	for _, entries := range [][]tar.Header{
		{{Name: "a", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "a/b", Size: 1}},
		{{Name: "way", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "way/new", Size: 1}, {Name: "way/.wh.file"}, {Name: "way/.wh..wh..opq"}},
		{{Name: "hard", Typeflag: tar.TypeLink, Linkname: "../outside/file"}},
		{{Name: "../../outside/new", Size: 1}, {Name: "/outside/new"}},
		{{Name: ".wh..."}, {Name: "a/.wh.."}},
		{{Name: "way", Typeflag: tar.TypeSymlink, Linkname: "/"}, {Name: "hard", Typeflag: tar.TypeLink, Linkname: "way/etc/passwd"}},
	} {
		var out bytes.Buffer
		writer := tar.NewWriter(&out)
		for _, entry := range entries {
			writer.WriteHeader(&entry)
			writer.Write(make([]byte, entry.Size))
		}
		writer.Close()
		f.Add(out.Bytes())
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		folder := t.TempDir()
		outside, layer := filepath.Join(folder, "outside"), filepath.Join(folder, "layer")
		for _, each := range []string{outside, layer} {
			if err := os.Mkdir(each, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(outside, "file"), []byte("as it was"), 0o600); err != nil {
			t.Fatal(err)
		}
		unpackStream(context.Background(), bytes.NewReader(content), layer, os.Geteuid() == 0)
		if found, _ := os.ReadFile(filepath.Join(outside, "file")); string(found) != "as it was" {
			t.Fatalf("the file outside is %q", found)
		}
		info, err := os.Stat(filepath.Join(outside, "file"))
		if err != nil || info.Mode() != 0o600 {
			t.Fatal("the file outside:", info, err)
		}
		for place, only := range map[string][]string{folder: {"layer", "outside"}, outside: {"file"}} {
			var names []string
			entries, err := os.ReadDir(place)
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range entries {
				names = append(names, entry.Name())
			}
			if !slices.Equal(names, only) {
				t.Fatal(place, names)
			}
		}
		if _, err := removeTree(layer); err != nil {
			t.Fatal(err)
		}
	})
}
