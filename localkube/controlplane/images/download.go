package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sys/unix"
)

const (
	downloads    = 3 // at once
	blobAttempts = 6 // without a byte more
	spaceEvery   = 16 << 20
)

// download fetches a blob into the store unless it is there. What an earlier attempt has left is continued; if
// another process fetches the same blob, this one waits for it.
func (s *store) download(ctx context.Context, from []*endpoint, blob v1.Descriptor, report func(done int64)) error {
	if s.hasBlob(blob.Digest) {
		report(blob.Size)
		return nil
	}
	// Another registry may be slow with the same blob.
	registry, _, _ := v1.SHA256(strings.NewReader(from[0].image.registry()))
	path := s.path("work", blob.Digest.Algorithm+"-"+blob.Digest.Hex+"-"+registry.Hex[:12])
	part, err := flock(ctx, path, unix.LOCK_EX, func() {
		if found, err := os.Stat(path); err == nil {
			report(found.Size())
		}
	})
	if err != nil {
		return err
	}
	defer part.Close()
	if s.hasBlob(blob.Digest) {
		os.Remove(path)
		report(blob.Size)
		return nil
	}
	for restarted := false; ; restarted = true {
		continued, err := s.complete(ctx, from, blob, part, report)
		if err != nil {
			return err
		}
		sum, err := digestOf(part)
		if err != nil {
			return err
		}
		if sum == blob.Digest.Hex {
			break
		}
		if err := part.Truncate(0); err != nil {
			return err
		}
		if !continued || restarted {
			os.Remove(path)
			return fail(wrongDigest, "failed commit on ref %q: unexpected commit digest %s:%s, expected %s",
				"layer-"+blob.Digest.String(), blob.Digest.Algorithm, sum, blob.Digest)
		}
	}
	report(blob.Size)
	return os.Rename(path, s.blob(blob.Digest))
}

// complete appends to a part until the blob's size is reached; true if the part had a beginning already.
func (s *store) complete(ctx context.Context, from []*endpoint, blob v1.Descriptor, part *os.File, report func(int64)) (bool, error) {
	began, err := part.Seek(0, io.SeekEnd)
	if err != nil {
		return false, err
	}
	if began > blob.Size {
		began = 0
		if err := part.Truncate(0); err != nil {
			return false, err
		}
	}
	if err := checkSpace(s.root, blob.Size-began); err != nil {
		return false, err
	}
	have, tried := began, 0
	for have < blob.Size {
		report(have)
		err := s.more(ctx, from[(tried/2)%len(from)], blob, part, have, report)
		now, seekErr := part.Seek(0, io.SeekEnd)
		if seekErr != nil {
			return false, seekErr
		}
		if now-have >= leastProgress {
			tried = 0
		}
		have = now
		if err == nil {
			continue
		}
		var status *transport.Error
		final := ctx.Err() != nil || reasonOf(err) == diskFull || errors.Is(err, errSlow) ||
			errors.As(err, &status) && !passing(status.StatusCode) && tried >= 2*(len(from)-1)
		if tried++; final || tried >= blobAttempts*len(from) {
			if ctx.Err() != nil {
				return false, ctx.Err()
			}
			said := from[0].explain(err)
			return false, fail(reasonOf(said), "failed to copy: blob %s: %w", blob.Digest, said)
		}
		if err := pause(ctx, min(time.Duration(tried*tried)*100*time.Millisecond, 3*time.Second)); err != nil {
			return false, err
		}
	}
	return began > 0, nil
}

// more asks for what is missing, and appends what comes.
func (s *store) more(ctx context.Context, from *endpoint, blob v1.Descriptor, part *os.File, have int64, report func(int64)) error {
	header := http.Header{}
	if have > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", have))
	}
	response, err := from.get(ctx, http.MethodGet, from.image.path()+"/blobs/"+blob.Digest.String(), header)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	start := int64(0)
	if response.StatusCode == http.StatusPartialContent {
		start = rangeStart(response.Header.Get("Content-Range"))
	}
	if response.StatusCode == http.StatusRequestedRangeNotSatisfiable || start != have && start != 0 {
		if err := part.Truncate(0); err != nil {
			return err
		}
		return fmt.Errorf("%s answered a range of %s by %s", from.host.Host, blob.Digest, response.Status)
	}
	if start != have { // the server knows no ranges, and begins anew
		if err := part.Truncate(0); err != nil {
			return err
		}
	}
	if _, err := part.Seek(start, io.SeekStart); err != nil {
		return err
	}
	written, checked := start, start
	body := io.LimitReader(response.Body, blob.Size-start)
	buffer := make([]byte, 1<<20)
	for {
		n, err := body.Read(buffer)
		if n > 0 {
			if _, err := part.Write(buffer[:n]); err != nil {
				return err
			}
			if written += int64(n); written-checked > spaceEvery {
				checked = written
				if err := checkSpace(s.root, 0); err != nil {
					return err
				}
			}
			report(written)
		}
		if err == io.EOF && written == blob.Size {
			return nil
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
}

func rangeStart(text string) int64 {
	text, _ = strings.CutPrefix(text, "bytes ")
	text, _, _ = strings.Cut(text, "-")
	start, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1
	}
	return start
}

func digestOf(file *os.File) (string, error) {
	sum := sha256.New()
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	if _, err := io.CopyBuffer(sum, struct{ io.Reader }{file}, make([]byte, 1<<20)); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
