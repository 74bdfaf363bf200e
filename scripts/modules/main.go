// Command modules works on the Go modules of this repository. They are released together: each go.mod requires the others in
// one version, and go.work lets a checkout use them as they are. No go.mod has a replace directive, because go install
// would refuse it.
//
//	go run ./scripts/modules tidy [-diff]         go mod tidy in each module; with -diff, only check
//	go run ./scripts/modules version v1.2.3       require that version of each other
//	go run ./scripts/modules tags [v1.2.3]        print the tags of a release; with a version, check that this commit has them
//	go run ./scripts/modules replace ../shop      have another module use this checkout, by replace directives in its go.mod
package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

func main() {
	if err := run(os.Stdout, os.Args[1:]...); err != nil {
		fmt.Fprintln(os.Stderr, "modules:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, args ...string) error {
	all, err := load(".")
	if err != nil {
		return err
	}
	switch command := strings.Join(args[:min(len(args), 1)], ""); {
	case command == "tidy" && (len(args) == 1 || len(args) == 2 && args[1] == "-diff"):
		return all.tidy(len(args) == 2)
	case command == "version" && len(args) == 2:
		return all.require(args[1])
	case command == "tags" && len(args) == 1:
		return all.tags(out)
	case command == "tags" && len(args) == 2:
		return all.tagged(args[1])
	case command == "replace" && len(args) == 2:
		return all.replace(args[1])
	}
	return errors.New("usage: modules tidy [-diff] | version v1.2.3 | tags [v1.2.3] | replace DIR")
}

// A set is the modules of a checkout.
type set struct {
	root string // the checkout
	mods []mod
}

type mod struct {
	path string // such as github.com/walpost/walpost/outbox
	dir  string // in the checkout, such as outbox; "." for the relay
}

// load reads go.work.
func load(root string) (*set, error) {
	data, err := os.ReadFile(filepath.Join(root, "go.work"))
	if err != nil {
		return nil, err
	}
	work, err := modfile.ParseWork("go.work", data, nil)
	if err != nil {
		return nil, err
	}
	s := &set{root: root}
	for _, use := range work.Use {
		data, err := os.ReadFile(filepath.Join(root, use.Path, "go.mod"))
		if err != nil {
			return nil, err
		}
		s.mods = append(s.mods, mod{path: modfile.ModulePath(data), dir: filepath.Clean(use.Path)})
	}
	return s, nil
}

func (s *set) file(m mod, name string) string { return filepath.Join(s.root, m.dir, name) }

func (s *set) has(path string) bool {
	return slices.ContainsFunc(s.mods, func(m mod) bool { return m.path == path })
}

// edit changes a go.mod.
func edit(path string, change func(f *modfile.File) error) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	f, err := modfile.Parse(path, data, nil)
	if err == nil {
		err = change(f)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	f.Cleanup()
	if data, err = f.Format(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, data, 0o644) //nolint:gosec // a source file
}

// require writes the version of the set into each go.mod.
func (s *set) require(version string) error {
	if !semver.IsValid(version) {
		return fmt.Errorf("%q is not a version such as v1.2.3", version)
	}
	for _, m := range s.mods {
		if err := edit(s.file(m, "go.mod"), func(f *modfile.File) error { return s.requireIn(f, version) }); err != nil {
			return err
		}
	}
	path := filepath.Join(s.root, "go.work")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	work, err := modfile.ParseWork(path, data, nil)
	if err != nil {
		return err
	}
	for _, r := range slices.Clone(work.Replace) {
		err = cmp.Or(err, work.DropReplace(r.Old.Path, r.Old.Version))
	}
	for _, m := range s.mods {
		err = cmp.Or(err, work.AddReplace(m.path, version, "./"+strings.TrimPrefix(filepath.ToSlash(m.dir), "."), ""))
	}
	if err != nil {
		return err
	}
	work.Cleanup()
	return os.WriteFile(path, modfile.Format(work.Syntax), 0o644) //nolint:gosec // a source file
}

func (s *set) requireIn(f *modfile.File, version string) error {
	var err error
	for _, r := range slices.Clone(f.Require) {
		if s.has(r.Mod.Path) {
			err = cmp.Or(err, f.AddRequire(r.Mod.Path, version))
		}
	}
	return err
}

// version is the one that the modules require of each other.
func (s *set) version() (version string, err error) {
	for _, m := range s.mods {
		data, err := os.ReadFile(s.file(m, "go.mod"))
		if err != nil {
			return "", err
		}
		f, err := modfile.Parse("go.mod", data, nil)
		if err != nil {
			return "", err
		}
		for _, r := range f.Require {
			if !s.has(r.Mod.Path) {
				continue
			}
			if version != "" && r.Mod.Version != version {
				return "", fmt.Errorf("%s requires %s, and others require %s: run modules version", m.path, r.Mod, version)
			}
			version = r.Mod.Version
		}
	}
	return cmp.Or(version, unreleased), nil
}

// tags prints the tag of each module in the version that the modules require of each other.
func (s *set) tags(out io.Writer) error {
	version, err := s.version()
	if err != nil {
		return err
	}
	if version == unreleased {
		return errors.New("the modules require " + unreleased + " of each other: run modules version")
	}
	for _, m := range s.mods {
		fmt.Fprintln(out, strings.TrimPrefix(filepath.ToSlash(m.dir)+"/"+version, "./"))
	}
	return nil
}

// tagged checks that the commit has the tags of a version.
func (s *set) tagged(version string) error {
	var want strings.Builder
	if err := s.tags(&want); err != nil {
		return err
	}
	cmd := exec.Command("git", "tag", "--points-at", "HEAD")
	cmd.Dir = s.root
	has, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("git tag: %w", err)
	}
	for tag := range strings.FieldsSeq(want.String()) {
		if !strings.HasSuffix("/"+tag, "/"+version) {
			return fmt.Errorf("the modules require %s of each other, not %s: run modules version", tag[strings.LastIndex(tag, "/")+1:], version)
		}
		if !slices.Contains(strings.Fields(string(has)), tag) {
			return fmt.Errorf("this commit has no tag %s", tag)
		}
	}
	return nil
}

// replace has a module elsewhere use this checkout.
func (s *set) replace(dir string) error {
	root, err := filepath.Abs(s.root)
	if err != nil {
		return err
	}
	return edit(filepath.Join(dir, "go.mod"), func(f *modfile.File) error { return s.replaceIn(f, root, "") })
}

// replaceIn replaces each module by its folder, but for one.
func (s *set) replaceIn(f *modfile.File, root, but string) error {
	var err error
	for _, m := range s.mods {
		if m.path != but {
			err = cmp.Or(err, f.AddReplace(m.path, "", filepath.Join(root, m.dir), ""))
		}
	}
	return err
}

// unreleased stands in each go.mod until the first release.
const unreleased = "v0.0.0"

// tidy runs go mod tidy in each module. The go command would ask for the other modules where a release is, so it gets
// a copy of go.mod that replaces them.
func (s *set) tidy(diff bool) error {
	root, err := filepath.Abs(s.root)
	if err != nil {
		return err
	}
	version, err := s.version()
	if err != nil {
		return err
	}
	var untidy []string
	for _, m := range s.mods {
		dir, err := os.MkdirTemp("", "modules-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		copied := filepath.Join(dir, "go.mod")
		names := []string{"go.mod", "go.sum"}
		before := map[string][]byte{}
		for _, name := range names {
			data, err := os.ReadFile(s.file(m, name))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			before[name] = data
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				return err
			}
		}
		if err := edit(copied, func(f *modfile.File) error { return s.replaceIn(f, root, m.path) }); err != nil {
			return err
		}
		cmd := exec.Command("go", "mod", "tidy", "-modfile="+copied)
		cmd.Dir = filepath.Join(root, m.dir)
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go mod tidy in %s: %w\n%s", m.dir, err, out)
		}
		err = edit(copied, func(f *modfile.File) error {
			var err error
			for _, other := range s.mods {
				if other.path != m.path {
					err = cmp.Or(err, f.DropReplace(other.path, ""))
				}
			}
			return cmp.Or(err, s.requireIn(f, version))
		})
		if err != nil {
			return err
		}
		for _, name := range names {
			after, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			switch {
			case bytes.Equal(before[name], after):
			case diff:
				untidy = append(untidy, filepath.Join(m.dir, name))
			default:
				if err := os.WriteFile(s.file(m, name), after, 0o644); err != nil { //nolint:gosec // a source file
					return err
				}
			}
		}
	}
	if len(untidy) > 0 {
		return fmt.Errorf("not tidy: %s: run go run ./scripts/modules tidy", strings.Join(untidy, ", "))
	}
	return nil
}
