package images

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A worker does what needs the rights of a layer's owner: as root this process itself, otherwise a child in
// a user namespace in which the user is root. The child maps the user's subordinate ids as well, if
// there are any, so that files get their owners; where there are none, all files are the user's.
type worker struct {
	owners bool // of this process
	mutex  sync.Mutex
	child  *child
	tried  bool
	lock   *os.File // kept open by the child, so that the store stays locked until it has ended
}

type child struct {
	command *exec.Cmd
	in      io.WriteCloser
	mutex   sync.Mutex
	waiting map[int]chan reply
	next    int
	ended   error
}

type order struct {
	Number int      `json:"number"`
	Do     string   `json:"do"` // unpack, inherit, remove, checkout; cancel, of which Cancel is the number
	Cancel int      `json:"cancel,omitempty"`
	Blob   string   `json:"blob,omitempty"`
	Folder string   `json:"folder,omitempty"`
	Names  []string `json:"names,omitempty"`
	Lower  []string `json:"lower,omitempty"`
}

type reply struct {
	Number   int       `json:"number"`
	Unpacked *unpacked `json:"unpacked,omitempty"`
	Bytes    int64     `json:"bytes,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Message  string    `json:"message,omitempty"`
}

const (
	enough   = 65536 // ids that make a mapping that images can live with
	stageEnv = "TRAINYARD_IMAGES_STAGE"
)

func newWorker(lock *os.File) *worker {
	return &worker{owners: os.Geteuid() == 0 && mappedIDs("/proc/self/uid_map") >= enough, lock: lock}
}

func mappedIDs(path string) (count int) {
	content, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) == 3 {
			n, _ := strconv.Atoi(fields[2])
			count += n
		}
	}
	return count
}

// run carries an order out.
func (w *worker) run(ctx context.Context, do order) (reply, error) {
	c := w.start()
	if c == nil {
		done := perform(ctx, do, w.owners)
		return done, done.err()
	}
	answer := make(chan reply, 1)
	number, err := c.send(do, answer)
	if err != nil {
		return reply{}, err
	}
	select {
	case done := <-answer:
		return done, done.err()
	case <-ctx.Done():
		// What it has begun must have ended before it is removed.
		if _, err := c.send(order{Do: "cancel", Cancel: number}, nil); err == nil {
			<-answer
		}
		return reply{}, ctx.Err()
	}
}

func (r reply) err() error {
	if r.Message == "" {
		return nil
	}
	return &failure{r.Reason, r.Message, nil}
}

func perform(ctx context.Context, do order, owners bool) reply {
	done := reply{Number: do.Number}
	var err error
	switch do.Do {
	case "unpack":
		done.Unpacked, err = unpack(ctx, do.Blob, do.Folder, owners)
	case "inherit":
		err = inherit(do.Folder, do.Names, do.Lower, owners)
	case "remove":
		done.Bytes, err = removeTree(do.Folder)
	case "checkout":
		done.Bytes, err = checkout(do.Lower, do.Folder, owners)
	default:
		err = fmt.Errorf("unknown order %q", do.Do)
	}
	if err != nil {
		done.Reason, done.Message = reasonOf(err), err.Error()
	}
	return done
}

// start starts the child where one is needed and possible.
func (w *worker) start() *child {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.tried || os.Geteuid() == 0 {
		return w.child
	}
	w.tried = true
	ids := subordinateIDs()
	started, err := startChild(ids, w.lock)
	if err != nil && ids != nil {
		fmt.Fprintln(os.Stderr, "images: the subordinate ids cannot be used:", err)
		started, err = startChild(nil, w.lock)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "images: without a user namespace:", err)
		return nil
	}
	w.child = started
	return started
}

func (w *worker) stop() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.child != nil {
		w.child.in.Close()
		w.child.command.Wait()
		w.child = nil
	}
}

// mapping is a line of uid_map and one of gid_map, as newuidmap and newgidmap take them.
type mapping struct{ uids, gids []string }

// subordinateIDs finds the user's ids in /etc/subuid and /etc/subgid; nil if they are none or cannot be used.
func subordinateIDs() *mapping {
	for _, program := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil
		}
	}
	uids, gids := subordinate("/etc/subuid"), subordinate("/etc/subgid")
	if uids == nil || gids == nil {
		return nil
	}
	return &mapping{
		append([]string{"0", strconv.Itoa(os.Getuid()), "1"}, uids...),
		append([]string{"0", strconv.Itoa(os.Getgid()), "1"}, gids...),
	}
}

func subordinate(path string) []string {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	me := strconv.Itoa(os.Getuid())
	name := me
	if found, err := user.LookupId(me); err == nil {
		name = found.Username
	}
	var lines []string
	inside := 1
	for line := range strings.Lines(string(content)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) != 3 || fields[0] != me && fields[0] != name {
			continue
		}
		count, err := strconv.Atoi(fields[2])
		if err != nil || count < 1 {
			continue
		}
		lines = append(lines, strconv.Itoa(inside), fields[1], fields[2])
		inside += count
	}
	if inside < enough {
		return nil
	}
	return lines
}

// startChild starts this program again in a user namespace of its own.
func startChild(ids *mapping, lock *os.File) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := exec.Command(self)
	command.Args = []string{"images", "work"}
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL}
	command.Env = append(os.Environ(), stageEnv+"=ready")
	if ids == nil {
		command.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		command.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	} else {
		command.Env = append(os.Environ(), stageEnv+"=mapping")
	}
	in, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if lock != nil {
		command.ExtraFiles = []*os.File{lock}
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	giveUp := func(err error) (*child, error) {
		in.Close()
		command.Process.Kill()
		command.Wait()
		return nil, err
	}
	answers := bufio.NewReaderSize(out, 1<<20)
	if ids != nil {
		if err := mapIDs(command.Process.Pid, ids); err != nil {
			return giveUp(err)
		}
		if _, err := io.WriteString(in, "\n"); err != nil {
			return giveUp(err)
		}
	}
	if line, err := answers.ReadString('\n'); err != nil || strings.TrimSpace(line) != "ready" {
		return giveUp(fmt.Errorf("the worker in a user namespace did not start: %q, %w", line, err))
	}
	c := &child{command: command, in: in, waiting: map[int]chan reply{}}
	go c.read(answers)
	return c, nil
}

func mapIDs(pid int, ids *mapping) error {
	for program, lines := range map[string][]string{"newuidmap": ids.uids, "newgidmap": ids.gids} {
		said, err := exec.Command(program, append([]string{strconv.Itoa(pid)}, lines...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(said))
		}
	}
	return nil
}

// send passes an order on, and returns the number by which it is answered.
func (c *child) send(do order, answer chan reply) (int, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.ended != nil {
		return 0, c.ended
	}
	c.next++
	do.Number = c.next
	line, err := json.Marshal(do)
	if err != nil {
		return 0, err
	}
	if answer != nil {
		c.waiting[do.Number] = answer
	}
	_, err = c.in.Write(append(line, '\n'))
	return do.Number, err
}

func (c *child) read(answers *bufio.Reader) {
	var err error
	for {
		var line []byte
		if line, err = answers.ReadBytes('\n'); err != nil {
			break
		}
		var done reply
		if err = json.Unmarshal(line, &done); err != nil {
			break
		}
		c.mutex.Lock()
		if answer := c.waiting[done.Number]; answer != nil {
			answer <- done
			delete(c.waiting, done.Number)
		}
		c.mutex.Unlock()
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.ended = fmt.Errorf("the worker in a user namespace has ended: %w", err)
	for _, answer := range c.waiting {
		answer <- reply{Reason: internal, Message: c.ended.Error()}
	}
	c.waiting = nil
}

// work is the child's main function.
func work() error {
	in := bufio.NewReaderSize(os.Stdin, 1<<16)
	if os.Getenv(stageEnv) == "mapping" {
		// A process gets the rights of its namespace's root when it executes a program as that. The byte is
		// read by itself, since what follows is the next program's.
		if n, err := os.Stdin.Read(make([]byte, 1)); n != 1 {
			return fmt.Errorf("no ids: %w", err)
		}
		os.Setenv(stageEnv, "ready")
		self, err := os.Executable()
		if err != nil {
			return err
		}
		return syscall.Exec(self, os.Args, os.Environ())
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("not root in the namespace")
	}
	// An interrupted pull has its half layers removed; this ends with its input.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
	unix.Umask(0o022)
	owners := mappedIDs("/proc/self/uid_map") >= enough
	var writing, cancelling sync.Mutex
	running := map[int]context.CancelFunc{}
	fmt.Println("ready")
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return nil // the parent has ended, or needs nothing more
		}
		var do order
		if err := json.Unmarshal(line, &do); err != nil {
			return err
		}
		cancelling.Lock()
		if do.Do == "cancel" {
			if cancel := running[do.Cancel]; cancel != nil {
				cancel()
			}
			cancelling.Unlock()
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		running[do.Number] = cancel
		cancelling.Unlock()
		go func() {
			line, _ := json.Marshal(perform(ctx, do, owners))
			cancelling.Lock()
			delete(running, do.Number)
			cancelling.Unlock()
			cancel()
			writing.Lock()
			defer writing.Unlock()
			os.Stdout.Write(append(line, '\n'))
		}()
	}
}
