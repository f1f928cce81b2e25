package images

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Reasons of failures, by which callers decide what to do next.
const (
	invalid      = "invalid"      // the reference is none
	unreachable  = "unreachable"  // no registry answered
	unauthorized = "unauthorized" // no credentials were accepted
	notFound     = "notfound"
	rateLimited  = "ratelimited"
	wrongDigest  = "digest"
	diskFull     = "disk"
	noPlatform   = "platform"
	inUse        = "inuse" // containers run from it
	busy         = "busy"  // another process works on the store
	fromRegistry = "registry"
	archiveError = "archive" // a file to load is no image
	internal     = "store"
	interrupted  = "interrupted"
)

type failure struct {
	reason  string
	message string
	cause   error
}

func (f *failure) Error() string { return f.message }
func (f *failure) Unwrap() error { return f.cause }

func fail(reason, format string, arguments ...any) error {
	err := fmt.Errorf(format, arguments...)
	return &failure{reason, err.Error(), errors.Unwrap(err)}
}

// reasonOf finds the reason of an error: its own, or one that the kernel's error number says.
func reasonOf(err error) string {
	var known *failure
	switch {
	case errors.As(err, &known):
		return known.reason
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return diskFull
	case errors.Is(err, context.Canceled):
		return interrupted
	}
	return internal
}
