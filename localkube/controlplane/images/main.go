package images

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/log"
)

const usage = `usage: images COMMAND [--store DIR] [ARGUMENT…]

  pull [--platform linux/amd64] [--loopback] REFERENCE
                                            credentials on standard input: {"auths": [.dockerconfigjson, …]};
                                            with --loopback the registry may be on this machine
  load [--platform linux/amd64] FILE        of docker save, an OCI layout as a tar or a folder; - is standard input
  save -o FILE REFERENCE…
  list
  remove REFERENCE…
  prune [--all] [--target-bytes N] [--min-age 2m]
  checkout IMAGE-ID FOLDER

Answers are JSON lines; after a failure the last is {"event": "failed", "reason", "message"}.
`

type command struct {
	flags    *flag.FlagSet
	folder   string
	platform string
	output   string
	loopback bool
	all      bool
	target   int64
	minAge   time.Duration
}

// Main runs the command that os.Args names.
func Main() {
	debug.SetGCPercent(400)
	log.SetLevel("warn")
	arguments := os.Args[1:]
	if len(arguments) == 0 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if arguments[0] == "work" {
		if err := work(); err != nil {
			fmt.Fprintln(os.Stderr, "images work:", err)
			os.Exit(1)
		}
		return
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, arguments[0], arguments[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(os.Stderr, usage)
			os.Exit(2)
		}
		say(failedEvent{"failed", reasonOf(err), err.Error()})
		os.Exit(1)
	}
}

type failedEvent struct {
	Event   string `json:"event"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type imageEvent struct {
	Event    string  `json:"event"`
	Image    *Record `json:"image"`
	New      *bool   `json:"new,omitempty"`
	Users    *int    `json:"users,omitempty"`
	LastUsed int64   `json:"last_used,omitempty"`
}

var saying sync.Mutex

func say(event any) {
	saying.Lock()
	defer saying.Unlock()
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.Encode(event)
}

func run(ctx context.Context, verb string, arguments []string) error {
	verbs := map[string]struct {
		run         func(context.Context, *store, *command, []string) error
		least, most int
	}{
		"pull":     {runPull, 1, 1},
		"load":     {runLoad, 1, 1},
		"save":     {runSave, 1, -1},
		"list":     {runList, 0, 0},
		"remove":   {runRemove, 1, -1},
		"prune":    {runPrune, 0, 0},
		"checkout": {runCheckout, 2, 2},
	}
	chosen, found := verbs[verb]
	if !found {
		return flag.ErrHelp
	}
	c := &command{flags: flag.NewFlagSet(verb, flag.ContinueOnError)}
	c.flags.Usage = func() {}
	c.flags.StringVar(&c.folder, "store", defaultStore(), "")
	switch verb {
	case "pull":
		c.flags.BoolVar(&c.loopback, "loopback", false, "")
		fallthrough
	case "load":
		c.flags.StringVar(&c.platform, "platform", "linux/"+runtime.GOARCH, "")
	case "save":
		c.flags.StringVar(&c.output, "o", "", "")
	case "prune":
		c.flags.BoolVar(&c.all, "all", false, "")
		c.flags.Int64Var(&c.target, "target-bytes", 0, "")
		c.flags.DurationVar(&c.minAge, "min-age", 2*time.Minute, "")
	}
	if err := c.flags.Parse(arguments); err != nil {
		return flag.ErrHelp
	}
	rest := c.flags.Args()
	if len(rest) < chosen.least || chosen.most >= 0 && len(rest) > chosen.most {
		return flag.ErrHelp
	}
	s, err := openStore(c.folder)
	if err != nil {
		return err
	}
	return chosen.run(ctx, s, c, rest)
}

func defaultStore() string {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		home, _ := os.UserHomeDir()
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "trainyard", "images")
}

func runPull(ctx context.Context, s *store, c *command, arguments []string) error {
	image, err := parseName(arguments[0])
	if err != nil {
		return err
	}
	given := &secrets{}
	if found, err := os.Stdin.Stat(); err == nil && found.Mode()&os.ModeCharDevice == 0 {
		if given, err = readSecrets(os.Stdin); err != nil {
			return err
		}
	}
	record, fresh, err := s.pull(ctx, image, c.platform, given, c.loopback, &progress{say: say})
	if err != nil {
		return err
	}
	say(imageEvent{Event: "pulled", Image: record, New: &fresh})
	return nil
}

func runList(_ context.Context, s *store, _ *command, _ []string) error {
	records, err := s.records()
	if err != nil {
		return err
	}
	for _, record := range records {
		users := len(s.users(record.ID))
		say(imageEvent{Event: "image", Image: record, Users: &users, LastUsed: s.lastUsed(record).Unix()})
	}
	return nil
}

func runCheckout(ctx context.Context, s *store, _ *command, arguments []string) error {
	held, err := s.share(ctx)
	if err != nil {
		return err
	}
	defer held.Close()
	record, err := s.lookup(arguments[0])
	if err != nil {
		return err
	}
	folder, err := filepath.Abs(arguments[1])
	if err != nil {
		return err
	}
	var layers []string
	for _, layer := range record.Layers {
		layers = append(layers, s.path("layers", layer))
	}
	w := newWorker(held)
	defer w.stop()
	done, err := w.run(ctx, order{Do: "checkout", Lower: layers, Folder: folder})
	if err != nil {
		return err
	}
	say(struct {
		Event string `json:"event"`
		Image string `json:"image"`
		Bytes int64  `json:"bytes"`
	}{"checkedout", record.ID, done.Bytes})
	return nil
}
