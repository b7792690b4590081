// Command bench measures the numbers of the design that concern the file system:
// how fast the tree answers through FUSE, against a C loop on /dev/fuse, an equal
// tree on go-fuse, and tmpfs.
//
//	go run . [-bin DIR] [-rounds N] [-ms N]
//
// Each row is a ratio: in each round both sides are measured one after the
// other, with a C client of raw system calls; the row shows the median of the
// rounds' ratios. Many short rounds rather than few long ones: a busy machine
// then slows both sides alike. Every server is a
// process of its own. It needs root (it mounts), gcc, and /dev/fuse. With -bin
// the daemon in DIR is measured too; else only package fs, with an in-memory
// tree.
//
// This is a module of its own so that go-fuse, which is only measured against,
// is no dependency of the product.
package main

import (
	"flag"
	"fmt"
	"os"
	"text/tabwriter"
)

func main() {
	var (
		bin    = flag.String("bin", "", "directory of the built binaries: measure the daemon too")
		rounds = flag.Int("rounds", 41, "rounds per row")
		ms     = flag.Int("ms", 25, "milliseconds per measurement")
		serve  = flag.String("serve", "", "internal: serve this kind of tree at the argument")
	)
	flag.Parse()
	if *serve != "" {
		if err := runServer(*serve, flag.Arg(0)); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	ok, err := run(*bin, *rounds, *ms)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	if !ok {
		fmt.Println("\nsome rows are below their mark")
	}
}

// run measures everything and says whether every mark was reached.
func run(bin string, rounds, ms int) (ok bool, err error) {
	w, err := newWorld(ms)
	if err != nil {
		return false, err
	}
	defer w.close()
	ok = true
	p, err := w.startPeers()
	if err != nil {
		return false, err
	}
	fmt.Println("package fs, an in-memory tree")
	rows, err := w.fsRows(p)
	if err != nil {
		return false, err
	}
	ok = table(rows, rounds) && ok
	if bin == "" {
		return ok, nil
	}
	fmt.Println("\nthe daemon of", bin)
	rows, err = w.daemonRows(bin, p)
	if err != nil {
		return false, err
	}
	return table(rows, rounds) && ok, nil
}

// A row compares two measurements, each in operations per second.
type row struct {
	what    string
	ours    func() (float64, error)
	against string
	theirs  func() (float64, error)
	reach   float64 // 0: for information only
}

func table(rows []row, rounds int) bool {
	ok := true
	t := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	fmt.Fprintln(t, "what\tours/s\tagainst\ttheirs/s\tratio\treach\t")
	for _, r := range rows {
		ours, theirs, ratio, err := r.measure(rounds)
		mark, verdict := "–", ""
		switch {
		case err != nil:
			verdict, ok = "failed: "+err.Error(), false
		case r.reach > 0 && ratio >= r.reach:
			mark, verdict = fmt.Sprintf("≥ %.2g", r.reach), "ok"
		case r.reach > 0:
			mark, verdict, ok = fmt.Sprintf("≥ %.2g", r.reach), "below", false
		}
		fmt.Fprintf(t, "%s\t%.0f\t%s\t%.0f\t%.2f\t%s\t%s\n", r.what, ours, r.against, theirs, ratio, mark, verdict)
	}
	t.Flush()
	return ok
}
