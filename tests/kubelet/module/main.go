// Command kubernetes-node is the kubelet and kube-proxy in one file, as its first argument says: the unchanged
// upstream ones, which share most of their text.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	components := map[string]func() *cobra.Command{
		"kubelet":    func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
		"kube-proxy": proxy.NewProxyCommand,
	}
	if len(os.Args) < 2 || components[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: kubernetes-node kubelet|kube-proxy [ARGUMENT…]")
		os.Exit(2)
	}
	os.Args = os.Args[1:]
	os.Exit(cli.Run(components[os.Args[0]]()))
}
