package cache

import (
	"strings"

	toolscache "k8s.io/client-go/tools/cache"
)

// HasSyncedChecker is the one method that client-go 0.36 has added to a registration since controller-runtime 0.20.
func (h handlerRegistration) HasSyncedChecker() toolscache.DoneChecker {
	checker := allSynced{done: make(chan struct{})}
	waiting := make([]<-chan struct{}, 0, len(h.handles))
	for namespace, registration := range h.handles {
		checker.names = append(checker.names, namespace)
		waiting = append(waiting, registration.HasSyncedChecker().Done())
	}
	go func() {
		for _, done := range waiting {
			<-done
		}
		close(checker.done)
	}()
	return checker
}

type allSynced struct {
	names []string
	done  chan struct{}
}

// Name implements toolscache.DoneChecker.
func (a allSynced) Name() string { return "namespaces " + strings.Join(a.names, ", ") }

// Done implements toolscache.DoneChecker.
func (a allSynced) Done() <-chan struct{} { return a.done }
