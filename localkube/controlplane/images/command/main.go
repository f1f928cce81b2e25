// Command images is the store of images alone, without the control plane around it.
package main

import "trainyard/controlplane/images"

func main() { images.Main() }
