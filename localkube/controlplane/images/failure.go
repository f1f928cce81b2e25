package images

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
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

// described is an error in other words; its kind is still that of the cause.
type described struct {
	text  string
	cause error
}

func (d *described) Error() string { return d.text }
func (d *described) Unwrap() error { return d.cause }

// withoutContent describes what has happened to a request without anything that a server has sent: no body, no
// header, no address of a redirect but its host.
func withoutContent(err error) error {
	where := ""
	var request *url.Error
	if errors.As(err, &request) {
		if at, wrong := url.Parse(request.URL); wrong == nil {
			where = at.Scheme + "://" + at.Host + ": "
		}
	}
	return &described{where + kindOf(err), err}
}

func kindOf(err error) string {
	var status *transport.Error
	var name *net.DNSError
	var op *net.OpError
	var timeout net.Error
	for _, ours := range []error{errRefused, errPlain, errProxy} {
		if errors.Is(err, ours) {
			return innermost(err, ours)
		}
	}
	switch {
	case errors.Is(err, errSlow):
		return errSlow.Error()
	case errors.As(err, &status):
		return fmt.Sprint(statusOf(status), codesOf(status))
	case errors.As(err, &name):
		return name.Error()
	case errors.As(err, &op):
		return op.Error()
	case strings.Contains(err.Error(), "x509: "), strings.Contains(err.Error(), "tls: "):
		return certificateError(err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "the connection was cut: " + io.ErrUnexpectedEOF.Error()
	}
	return "the answer is no registry's"
}

// innermost finds the text of the last error around a known one, which is ours as well.
func innermost(err, known error) string {
	text := err.Error()
	for err != nil && errors.Is(err, known) && err != known {
		text = err.Error()
		err = errors.Unwrap(err)
	}
	return text
}

func certificateError(err error) string {
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &authority):
		return "tls: failed to verify certificate: x509: certificate signed by unknown authority"
	case errors.As(err, &host):
		return "tls: failed to verify certificate: x509: the certificate is not for " + host.Host
	case errors.As(err, &invalid):
		return "tls: failed to verify certificate: x509: certificate has expired or is not valid"
	}
	return "tls: the connection cannot be made secure"
}

func statusOf(status *transport.Error) string {
	return fmt.Sprintf("%d %s", status.StatusCode, http.StatusText(status.StatusCode))
}

// codesOf lists the distribution specification's codes in an answer, and none that a server has made up.
func codesOf(status *transport.Error) string {
	known := []transport.ErrorCode{
		transport.BlobUnknownErrorCode, transport.DeniedErrorCode, transport.ManifestUnknownErrorCode, transport.NameInvalidErrorCode,
		transport.NameUnknownErrorCode, transport.TooManyRequestsErrorCode, transport.UnauthorizedErrorCode, transport.UnsupportedErrorCode,
	}
	var found []string
	for _, diagnostic := range status.Errors {
		if slices.Contains(known, diagnostic.Code) && !slices.Contains(found, string(diagnostic.Code)) {
			found = append(found, string(diagnostic.Code))
		}
	}
	if len(found) == 0 {
		return ""
	}
	return " (" + strings.Join(found, ", ") + ")"
}
