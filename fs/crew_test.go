package fs

import (
	"sync/atomic"
	"testing"
	"time"
)

// testCrew has a channel of jobs as its device.
func testCrew(t *testing.T) (c *crew, jobs chan func()) {
	c, jobs = new(crew), make(chan func())
	read := func() {
		defer c.all.Done()
		for job := range jobs {
			c.leave()
			job()
			if !c.join() {
				return
			}
		}
	}
	stop := make(chan struct{})
	c.start(1, read, stop)
	t.Cleanup(func() {
		close(stop)
		close(jobs)
		c.all.Wait()
	})
	return c, jobs
}

// Jobs that do not come back never stop the next one.
func TestCrewSubstitutes(t *testing.T) {
	_, jobs := testCrew(t)
	end := make(chan struct{})
	for range 20 {
		jobs <- func() { <-end } // each send needs a listener
	}
	jobs <- func() {}
	close(end)
}

// A reader that is always at work, with short jobs, gets help; when it is over the
// helpers go.
func TestCrewGrowsAndShrinks(t *testing.T) {
	c, jobs := testCrew(t)
	var running, together atomic.Int32
	short := func() {
		if running.Add(1) > 1 {
			together.Store(1)
		}
		for end := time.Now().Add(300 * time.Microsecond); time.Now().Before(end); {
		}
		running.Add(-1)
	}
	var feeders [4]chan struct{}
	for i := range feeders {
		feeders[i] = make(chan struct{})
		go func() {
			defer close(feeders[i])
			for together.Load() == 0 {
				jobs <- short
			}
		}()
	}
	for _, f := range feeders {
		<-f
	}
	// Extra readers leave after their next job.
	for c.slow() {
		time.Sleep(time.Millisecond)
	}
	for range 100 {
		jobs <- func() {}
	}
	for c.listening.Load() != 1 {
		done := make(chan struct{})
		jobs <- func() { close(done) }
		<-done
	}
}
