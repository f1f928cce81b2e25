// Command gateway is the gateway alone, to go with control plane binaries that were not built from this module.
package main

import "trainyard/controlplane/gateway"

func main() { gateway.Main() }
