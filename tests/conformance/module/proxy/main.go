// Command proxy passes connections to a Unix socket on to whoever connects to a TCP port, one for one, as
// hostpathplugin does for the suite's DRA driver, whose sockets are the kubelet's and whose code is e2e.test's.
package main

import (
	"flag"
	"io"
	"log"
	"net"
	"os"
	"strings"
)

// halfCloser is a connection whose directions end one by one.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

func main() {
	endpoint := flag.String("endpoint", "", "path of the Unix socket")
	proxyEndpoint := flag.String("proxy-endpoint", "", "tcp://ADDRESS:PORT")
	flag.String("v", "", "not used")
	flag.Parse()
	os.Remove(*endpoint) // of a process that was killed
	socket, err := net.Listen("unix", *endpoint)
	if err != nil {
		log.Fatal(err)
	}
	port, err := net.Listen("tcp", strings.TrimPrefix(*proxyEndpoint, "tcp://"))
	if err != nil {
		log.Fatal(err)
	}
	for {
		client, err := socket.Accept()
		if err != nil {
			log.Fatal(err)
		}
		server, err := port.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go forward(client.(halfCloser), server.(halfCloser))
		go forward(server.(halfCloser), client.(halfCloser))
	}
}

func forward(to, from halfCloser) {
	if _, err := io.Copy(to, from); err != nil {
		from.Close()
	}
	to.CloseWrite()
}
