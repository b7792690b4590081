package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"cortexfs/node"
	"cortexfs/node/fault"
)

// The records below STORE/state.
const (
	labelsRecord = "labels"   // `TYPE UID` lines: label types and their owners
	poolRecord   = "uid-pool" // the next uid to give to an agent of owner 0
)

// readRecords takes over what earlier daemons wrote down. With nobody else
// knowing t.
func (t *Table) readRecords() error {
	text, err := t.readRecord(labelsRecord)
	if err != nil {
		return err
	}
	if t.labels, err = parseLabels(text); err != nil {
		return fault.At("read", "state/"+labelsRecord, err)
	}
	if err := t.readKin(); err != nil {
		return err
	}
	text, err = t.readRecord(poolRecord)
	if err != nil {
		return err
	}
	t.pool = t.o.PoolFirst
	if text != "" {
		next, err := node.ParseUint(strings.TrimSuffix(text, "\n"))
		if err != nil {
			return fault.At("read", "state/"+poolRecord, err)
		}
		t.pool = max(next, t.o.PoolFirst)
	}
	return nil
}

func (t *Table) readRecord(name string) (string, error) {
	b, err := t.state.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(b), fault.FromOS("read", "state/"+name, err)
}

// writeRecord replaces a record: a crash leaves the old or the new text. With
// t.commit held, so the temporary name is ours.
func (t *Table) writeRecord(name string, text []byte) error {
	temp := name + ".new"
	err := t.writeTemp(temp, text)
	if err == nil {
		err = t.state.Rename(temp, name)
	}
	if err == nil {
		err = t.syncState()
	}
	return fault.FromOS("write", "state/"+name, err)
}

func (t *Table) writeTemp(temp string, text []byte) error {
	f, err := t.state.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

func (t *Table) syncState() error {
	d, err := t.state.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// takePoolUID gives out the next uid that neither the account database nor an
// agent knows as a user or a group. The mark is durable before the uid is used,
// so it is never given out again. NoSpace when the pool is used up. With
// t.commit held.
func (t *Table) takePoolUID() (uint32, error) {
	ids := t.loadLineage().ids
	for next := t.pool; next <= t.o.PoolLast; next++ {
		if _, taken := t.o.Users.User(next); taken || ids[next] || t.o.Users.Group(next) {
			continue
		}
		if err := t.writeRecord(poolRecord, fmt.Appendf(nil, "%d\n", next+1)); err != nil {
			return 0, err
		}
		t.pool = next + 1
		return next, nil
	}
	return 0, fault.Newf(fault.NoSpace, "all uids of the pool %d–%d have been given out", t.o.PoolFirst, t.o.PoolLast)
}
