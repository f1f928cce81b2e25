// The kubelet's own rules for variables: answers one JSON question a line, for tests of ours.
package main

import (
	"bufio"
	"encoding/json"
	"os"

	"k8s.io/kubernetes/pkg/kubelet/util/env"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

type question struct {
	Expand    *string
	Variables map[string]string
	EnvFile   []byte
	Key       string
}

func answer(asked question, scratch string) (string, error) {
	if asked.Expand != nil {
		return expansion.Expand(*asked.Expand, expansion.MappingFuncFor(asked.Variables)), nil
	}
	if err := os.WriteFile(scratch, asked.EnvFile, 0o600); err != nil {
		return "", err
	}
	return env.ParseEnv(scratch, asked.Key)
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		value, err := answer(asked, os.Args[1])
		out.Encode(map[string]any{"value": []byte(value), "failed": err != nil})
	}
}
