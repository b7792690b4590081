package nodetest

import (
	"errors"
	"os"
	"strings"
	"syscall"
)

// A sequence is what a program really does to save a file, as strace shows it
// (notes-fuse 1c, cases M1 and M2). It returns the error that the program sees.
type sequence struct {
	name string
	save func(k *kit, name, text string) error
	// silent: the program does not notice a bad text that only the end can tell.
	silent bool
	// pieces: each line is a close of its own, which commits what is valid so far.
	pieces bool
}

// steps runs system calls until one fails.
func steps(calls ...func() error) error {
	for _, call := range calls {
		if err := call(); err != nil {
			return err
		}
	}
	return nil
}

// writeNew creates a file exclusively, writes and closes it.
func (k *kit) writeNew(path, text string, sync bool) error {
	fd, err := k.c.Open(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return k.fill(fd, text, sync)
}

// fill writes in two pieces, split in the middle as emacs does, and closes.
func (k *kit) fill(fd FD, text string, sync bool) error {
	half := len(text) / 2
	var err error
	for _, part := range []string{text[:half], text[half:]} {
		if err == nil && part != "" {
			_, err = k.c.Write(fd, []byte(part))
		}
	}
	if err == nil && sync {
		err = k.c.Fsync(fd)
	}
	return errors.Join(err, k.c.Close(fd))
}

// ignore is for steps whose failure the program takes as it comes.
func ignore(error) error { return nil }

// metadata is what editors copy from the old file to the new one.
func (k *kit) metadata(path string) error {
	st, err := k.c.Lstat(path)
	if err != nil {
		return err
	}
	_ = k.c.Setxattr(path, "system.posix_acl_access", "\x02\x00\x00\x00")
	return steps(
		func() error { return k.c.Chown(path, int(st.UID), int(st.GID)) },
		func() error { return k.c.Chmod(path, st.Mode) },
	)
}

var sequences = []sequence{
	{name: "bash echo", silent: true, save: func(k *kit, name, text string) error {
		fd, err := k.c.Open(k.p(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
		if err != nil {
			return err
		}
		out, err := k.c.Dup(fd)
		if err != nil {
			return err
		}
		_ = k.c.Close(fd)
		_, err = k.c.Write(out, []byte(text))
		_ = k.c.Close(out)
		return err
	}},
	{name: "dash echo, line by line in subshells", silent: true, pieces: true, save: func(k *kit, name, text string) error {
		fd, err := k.c.Open(k.p(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
		if err != nil {
			return err
		}
		defer k.c.Close(fd)
		for len(text) > 0 {
			line := text
			for i, c := range []byte(text) {
				if c == '\n' {
					line = text[:i+1]
					break
				}
			}
			child, err := k.c.Dup(fd)
			if err != nil {
				return err
			}
			_, err = k.c.Write(child, []byte(line))
			_ = k.c.Close(child)
			if err != nil {
				return err
			}
			text = text[len(line):]
		}
		return nil
	}},
	{name: "cp, cat, tee, python", save: func(k *kit, name, text string) error { return save(k.c, k.p(name), text) }},
	{name: "dd bs=1 conv=fsync", save: func(k *kit, name, text string) error {
		fd, err := k.c.Open(k.p(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
		if err != nil {
			return err
		}
		for _, c := range []byte(text) {
			if err == nil {
				_, err = k.c.Write(fd, []byte{c})
			}
		}
		if err == nil {
			err = k.c.Fsync(fd)
		}
		return errors.Join(err, k.c.Close(fd))
	}},
	{name: "vim, default", save: func(k *kit, name, text string) error { return k.vim(name, text, true) }},
	{name: "vim, backupcopy=yes", save: func(k *kit, name, text string) error { return k.vim(name, text, false) }},
	{name: "nano", save: func(k *kit, name, text string) error {
		swap := "." + name + ".swp"
		if err := k.writeNew(k.p(swap), "nano lock", true); err != nil {
			return err
		}
		defer k.c.Unlink(k.p(swap))
		fd, err := k.c.Open(k.p(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
		if err != nil {
			return err
		}
		return k.fill(fd, text, true)
	}},
	{name: "emacs", save: func(k *kit, name, text string) error {
		lock, auto, backup := k.p(".#"+name), k.p("#"+name+"#"), k.p(name+"~")
		if err := k.c.Symlink("me@host.1:2", lock); err != nil {
			return err
		}
		defer k.c.Unlink(lock)
		if err := k.writeNew(auto, text, false); err != nil {
			return err
		}
		defer k.c.Unlink(auto)
		if err := k.c.Rename(k.p(name), backup); err != nil {
			return err
		}
		defer k.c.Unlink(backup)
		fd, err := k.c.Open(k.p(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
		if err != nil {
			return err
		}
		if err := k.fill(fd, text, true); err != nil {
			return err
		}
		again, err := k.c.Open(k.p(name), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(k.c.Close(again), k.metadata(k.p(name)))
	}},
	{name: "sed -i", save: func(k *kit, name, text string) error {
		temp := k.p("sedQw3rTy")
		if err := k.writeNew(temp, text, false); err != nil {
			return err
		}
		return k.orRemove(temp, steps(
			func() error { return k.metadata(temp) },
			func() error { return k.c.Rename(temp, k.p(name)) }))
	}},
	{name: "perl -i", save: func(k *kit, name, text string) error {
		temp := k.p("XZ3fQ0pL")
		if err := k.writeNew(temp, text, false); err != nil {
			return err
		}
		return k.orRemove(temp, k.c.Rename(temp, k.p(name)))
	}},
	{name: "git config", save: func(k *kit, name, text string) error {
		lock := k.p(name + ".lock")
		if err := k.writeNew(lock, text, false); err != nil {
			return err
		}
		return k.orRemove(lock, steps(
			func() error { return k.c.Chmod(lock, 0o644) },
			func() error { return k.c.Rename(lock, k.p(name)) }))
	}},
	{name: "python os.replace", save: func(k *kit, name, text string) error {
		temp := k.p("tmp0a1b2c3d")
		if err := k.writeNew(temp, text, true); err != nil {
			return err
		}
		return k.orRemove(temp, steps(
			func() error { return k.c.Rename(temp, k.p(name)) },
			func() error { return k.c.SyncDir(k.dir) }))
	}},
	{name: "install, cp --remove-destination", save: func(k *kit, name, text string) error {
		return k.replaceByUnlink(name, text)
	}},
	{name: "mv from another file system", save: func(k *kit, name, text string) error {
		err := k.replaceByUnlink(name, text)
		if err != nil {
			_ = k.c.Unlink(k.p(name)) // mv removes what it could not finish
		}
		return err
	}},
	{name: "cp -p", save: func(k *kit, name, text string) error {
		return steps(
			func() error { return save(k.c, k.p(name), text) },
			func() error { return k.c.Touch(k.p(name)) },
			func() error { return k.metadata(k.p(name)) })
	}},
}

func (k *kit) replaceByUnlink(name, text string) error {
	if err := k.c.Unlink(k.p(name)); err != nil {
		return err
	}
	fd, err := k.c.Open(k.p(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := k.fill(fd, text, false); err != nil {
		return err
	}
	return steps(
		func() error { return k.c.Touch(k.p(name)) },
		func() error { return k.metadata(k.p(name)) })
}

// orRemove removes a temporary file after a failure, as these programs do.
func (k *kit) orRemove(temp string, err error) error {
	if err != nil {
		_ = k.c.Unlink(temp)
	}
	return err
}

// vim saves by renaming the file away (default), or by copying it first.
func (k *kit) vim(name, text string, rename bool) error {
	swap, backup, path := k.p("."+name+".swp"), k.p(name+"~"), k.p(name)
	err := steps(
		func() error { return k.writeNew(swap, "b0VIM", false) },
		func() error { return k.writeNew(k.p("."+name+".swpx"), "", false) },
		func() error { return k.c.Unlink(k.p("." + name + ".swpx")) },
		func() error { return k.c.Unlink(swap) },
		func() error { return k.writeNew(swap, "b0VIM 9.0", true) },
		func() error { return k.c.Chmod(swap, 0o644) },
		func() error { return k.writeNew(k.p("4913"), "", false) },
		func() error { return k.c.Unlink(k.p("4913")) },
		func() error { return ignore(k.c.Unlink(backup)) },
	)
	if err != nil {
		return err
	}
	defer k.c.Unlink(swap)
	if rename {
		err = k.c.Rename(path, backup)
	} else {
		old, rerr := readAll(k.c, path)
		err = errors.Join(rerr, k.writeNew(backup, old, false), k.c.Touch(backup))
	}
	if err != nil {
		return err
	}
	fd, err := k.c.Open(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	if err = k.c.Ftruncate(fd, 0); err == nil {
		err = k.fill(fd, text, true)
	} else {
		_ = k.c.Close(fd)
	}
	if err != nil && rename { // vim restores the original
		return errors.Join(err, k.c.Unlink(path), k.c.Rename(backup, path))
	}
	return errors.Join(err, k.metadata(path), k.c.Unlink(backup))
}

// good and bad texts of the five kinds of control; the bad one is bad as soon as
// it is written, the late one only at the end.
var saveTexts = map[string]struct{ good, bad, late string }{
	"approval":  {"ask\n", "maybe\n", "as"},
	"mount":     {table, "/srv/a\t/workspace\trw\tbind,rbind\n", "/srv/a\t/workspace"},
	"tools":     {"fs.read\nfs.list\n", "tsh\n", "fs.read"},
	"policy":    {ruleA, ruleA + "deny all\n", ruleA + "allow x"},
	"meta.json": {"{\"a\": [1, 2]}\n", "{]\n", "{\"a\": "},
}

var sequenceCases = func() []testCase {
	var cases []testCase
	for _, s := range sequences {
		cases = append(cases,
			testCase{name: "save/" + s.name, run: func(k *kit) { k.savesGood(s) }},
			testCase{name: "save/" + s.name + ", bad text", run: func(k *kit) { k.savesBad(s) }})
	}
	return cases
}()

func (k *kit) savesGood(s sequence) {
	for name, text := range saveTexts {
		st, err := k.c.Lstat(k.p(name))
		k.ok(err)
		if err := s.save(k, name, text.good); err != nil {
			k.Errorf("%s: %v", name, err)
		}
		k.is(name, text.good)
		if now, err := k.c.Lstat(k.p(name)); err != nil || now.Mode != st.Mode || now.UID != st.UID || now.Ino != st.Ino {
			k.Errorf("%s: %+v became %+v, %v", name, st, now, err)
		}
	}
	k.clean()
}

func (k *kit) savesBad(s sequence) {
	for name, text := range saveTexts {
		before := k.read(k.c, k.p(name))
		k.fails(s.save(k, name, text.bad), syscall.EINVAL)
		k.becomes(name, before) // at once, or after the name is back
		err := s.save(k, name, text.late)
		if !s.silent {
			k.fails(err, syscall.EINVAL)
		}
		if whole := text.late[:strings.LastIndexByte(text.late, '\n')+1]; s.pieces && whole != "" {
			before = whole
		}
		k.becomes(name, before)
	}
	k.becomes("status", "dead\n")
	k.until(func() bool {
		names, err := k.c.ReadDir(k.dir)
		return err == nil && len(names) == len(agentNames)
	}, "the directory to hold the controls only")
	k.clean()
}
