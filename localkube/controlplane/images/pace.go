package images

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
)

// A server that sends less than this in the time gives its place to others. kubelets have no such limit, and there
// one slow registry holds as many pulls as they make at a time.
const (
	paceSeconds   = 20
	leastProgress = paceSeconds << 10 // bytes
)

var errSlow = errors.New("the server sends less than a kilobyte a second")

// paced is the body of a response that ends when it comes too slowly.
type paced struct {
	io.ReadCloser
	timer *time.Timer
	came  atomic.Int64 // since the timer has looked
	slow  atomic.Bool
}

func pace(body io.ReadCloser) io.ReadCloser {
	p := &paced{ReadCloser: body}
	p.timer = time.AfterFunc(paceSeconds*time.Second, p.look)
	return p
}

func (p *paced) look() {
	if p.came.Swap(0) < leastProgress {
		p.slow.Store(true)
		p.ReadCloser.Close()
		return
	}
	p.timer.Reset(paceSeconds * time.Second)
}

// Read implements io.Reader.
func (p *paced) Read(into []byte) (int, error) {
	n, err := p.ReadCloser.Read(into)
	p.came.Add(int64(n))
	if err != nil && err != io.EOF && p.slow.Load() {
		err = errSlow
	}
	return n, err
}

// Close implements io.Closer.
func (p *paced) Close() error {
	p.timer.Stop()
	return p.ReadCloser.Close()
}
