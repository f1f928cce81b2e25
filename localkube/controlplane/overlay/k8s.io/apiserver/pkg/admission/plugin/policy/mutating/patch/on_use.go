package patch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// onUse holds back a poll until a policy needs what it looks up. Without a MutatingAdmissionPolicy the API server
// would build all OpenAPI documents for it, while the first pod is to start.
type onUse struct {
	first atomic.Pointer[func()]
}

type pollFunc func(context.Context, time.Duration, bool, wait.ConditionWithContextFunc) error

// poll begins with the first use, which waits for the first look-up.
func (u *onUse) poll(ctx context.Context, poll pollFunc, interval time.Duration, _ bool, look wait.ConditionWithContextFunc) error {
	used := make(chan struct{})
	first := sync.OnceFunc(func() {
		_, _ = look(ctx)
		close(used)
	})
	u.first.Store(&first)
	select {
	case <-used:
		return poll(ctx, interval, false, look)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (u *onUse) use() {
	if first := u.first.Load(); first != nil {
		(*first)()
	}
}
