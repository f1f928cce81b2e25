package aggregator

import "fmt"

// updateLocal looks up what this program's own servers describe, which upstream does at the start and each second.
func (s *specProxier) updateLocal() {
	for i := 1; s.UpdateAPIServiceSpec(fmt.Sprintf(localDelegateChainNamePattern, i)) != ErrAPIServiceNotFound; i++ {
	}
}
