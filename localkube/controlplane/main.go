// Command trainyard-kubernetes is a whole Kubernetes control plane in one file.
//
// It runs the component that its first argument names (or the name it was started under), with the remaining
// arguments: six programs share one text, so they take a quarter of the disk and of the build that the six
// official binaries would. Two more, the gateway and the store of images, are ours. Only the choice of the component is here; each component is the unchanged upstream one.
package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"time"
	_ "time/tzdata" // CronJobs with a time zone, on machines that have no zoneinfo

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	genericapiserver "k8s.io/apiserver/pkg/server"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/component-base/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	metricsserver "sigs.k8s.io/metrics-server/cmd/metrics-server/app"

	"trainyard/controlplane/gateway"
	"trainyard/controlplane/images"
)

// components maps a name to what runs it. Each finds its arguments in os.Args, its own name first.
var components = map[string]func(){
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          func() { exitWith(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() { exitWith(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() { exitWith(scheduler.NewSchedulerCommand()) },
	"kubectl":                 runKubectl,
	"metrics-server":          runMetricsServer,
	"gateway":                 gateway.Main,
	"images":                  images.Main,
	"version":                 func() { fmt.Println("Trainyard control plane: Kubernetes", version.Get().GitVersion) },
}

func main() {
	run := choose()
	if run == nil {
		usage(os.Stderr)
		os.Exit(2)
	}
	if server[os.Args[0]] {
		startWithRoom()
	}
	run()
}

// server has the components that run for as long as the cluster.
var server = map[string]bool{
	"etcd": true, "kube-apiserver": true, "kube-controller-manager": true, "kube-scheduler": true, "metrics-server": true,
}

const (
	startSeconds = 20
	startPercent = 150
	busySeconds  = 5
	busyPercent  = 300
	busyBytes    = 128 << 20
)

// startWithRoom collects garbage less often while a component starts than GOGC says, and then gives back what the
// start took: the API server starts with an eighth less CPU so. More room than this would leave a larger heap.
func startWithRoom() {
	atRest := debug.SetGCPercent(startPercent)
	time.AfterFunc(startSeconds*time.Second, func() {
		debug.SetGCPercent(atRest)
		debug.FreeOSMemory()
		giveRoom(atRest, atRest, time.Now())
	})
}

// giveRoom collects less often while there is much to do: half of the API server's CPU was the collector's during a
// Job of 200 pods. It looks at the end of each collection, and the runtime collects every two minutes by itself, so
// that an idle component has no timer for it and ends as small as GOGC says.
func giveRoom(atRest, percent int, before time.Time) {
	runtime.AddCleanup(&struct{ _ [64]byte }{}, func(int) {
		now, live := time.Now(), []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		next := atRest
		if now.Sub(before) < busySeconds*time.Second {
			next = max(atRest, min(busyPercent, int(busyBytes*100/(live[0].Value.Uint64()+1))))
		}
		if next != percent {
			debug.SetGCPercent(next)
		}
		giveRoom(atRest, next, now)
	}, 0)
}

// choose finds the component and leaves os.Args as that component would have been given them.
func choose() func() {
	if run, ok := components[filepath.Base(os.Args[0])]; ok {
		return run
	}
	if len(os.Args) < 2 {
		return nil
	}
	os.Args = os.Args[1:]
	return components[os.Args[0]]
}

func exitWith(command *cobra.Command) {
	os.Exit(cli.Run(command))
}

// runKubectl leaves errors to kubectl's own printer, which explains the API server's refusals.
func runKubectl() {
	if _, err := logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)); err != nil {
		fmt.Fprintln(os.Stderr, "kubectl: log verbosity:", err)
	}
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}

// runMetricsServer does what its own main does; its command wants the signals of a server from outside.
func runMetricsServer() {
	exitWith(metricsserver.NewMetricsServerCommand(genericapiserver.SetupSignalHandler()))
}

func usage(out io.Writer) {
	fmt.Fprintln(out, "usage: trainyard-kubernetes COMPONENT [ARGUMENT…]; the components are:")
	for _, name := range slices.Sorted(maps.Keys(components)) {
		fmt.Fprintln(out, "  "+name)
	}
}
