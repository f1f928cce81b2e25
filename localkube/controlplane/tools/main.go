// Command trainyard-tools is what no release of Kubernetes has: the gateway and the store of images, by themselves.
//
// It goes with control plane binaries that were not built from this module, and beside those that were: it starts
// in a fifth of the time of the whole control plane.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"trainyard/controlplane/gateway"
	"trainyard/controlplane/images"
)

var tools = map[string]func(){"gateway": gateway.Main, "images": images.Main}

func main() {
	run := tools[filepath.Base(os.Args[0])]
	if run == nil && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		run = tools[os.Args[0]]
	}
	if run == nil {
		fmt.Fprintln(os.Stderr, "usage: trainyard-tools gateway|images [ARGUMENT…]")
		os.Exit(2)
	}
	run()
}
