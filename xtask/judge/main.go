// Answers how Kubernetes reads a text. Questions come on standard input, answers go to standard output.
//
// A question is one byte for its kind, the length of its text as four bytes (little endian), and the text. An answer is
// one byte, a length, and a text: 'y' and the value; 'n' and the reason of a refusal; 'r' and the value of a YAML
// document that something unreadable follows.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"

	goyaml "go.yaml.in/yaml/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
	"sigs.k8s.io/yaml"
)

func main() {
	in, out := bufio.NewReader(os.Stdin), bufio.NewWriter(os.Stdout)
	for {
		kind, err := in.ReadByte()
		if err == io.EOF {
			return
		}
		var length uint32
		if err == nil {
			err = binary.Read(in, binary.LittleEndian, &length)
		}
		text := make([]byte, length)
		if err == nil {
			_, err = io.ReadFull(in, text)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "a question is cut off:", err)
			os.Exit(1)
		}
		answer(out, kind, text)
		// With no question waiting, the other side waits for the answers.
		if in.Buffered() == 0 {
			out.Flush()
		}
	}
}

func answer(out io.Writer, kind byte, text []byte) {
	status, value := byte('y'), ""
	func() {
		defer func() {
			if problem := recover(); problem != nil {
				status, value = 'n', fmt.Sprint("panic: ", problem)
			}
		}()
		var err error
		value, err = read(kind, text)
		switch {
		case err != nil:
			status, value = 'n', err.Error()
		case kind == 'y' && !ends(text):
			status = 'r'
		}
	}()
	out.Write([]byte{status})
	binary.Write(out, binary.LittleEndian, uint32(len(value)))
	io.WriteString(out, value)
}

func read(kind byte, text []byte) (string, error) {
	switch kind {
	case 'y':
		value, err := yaml.YAMLToJSON(text)
		return string(value), err
	case 'j':
		var value any
		if err := utiljson.Unmarshal(text, &value); err != nil {
			return "", err
		}
		again, err := json.Marshal(value)
		return string(again), err
	case 'c':
		_, cidr, err := netutils.ParseCIDRSloppy(string(text))
		if err != nil {
			return "", err
		}
		return cidr.String(), nil
	case 'a':
		ip := netutils.ParseIPSloppy(string(text))
		if ip == nil {
			return "", fmt.Errorf("not an address")
		}
		return ip.String(), nil
	case 'p':
		prefix, err := netip.ParsePrefix(string(text))
		return prefix.Masked().String(), err
	case 's':
		return selects(text)
	}
	return "", fmt.Errorf("unknown kind of question: %c", kind)
}

// Whether nothing unreadable follows the first document.
func ends(text []byte) bool {
	decoder := goyaml.NewDecoder(bytes.NewReader(text))
	var value any
	decoder.Decode(&value)
	return decoder.Decode(&value) == io.EOF
}

// Whether a selector matches labels, if the API server accepts the selector.
func selects(text []byte) (string, error) {
	var question struct {
		Selector metav1.LabelSelector
		Labels   map[string]string
	}
	if err := json.Unmarshal(text, &question); err != nil {
		return "", err
	}
	options := metavalidation.LabelSelectorValidationOptions{}
	problems := metavalidation.ValidateLabelSelector(&question.Selector, options, field.NewPath("podSelector"))
	if len(problems) > 0 {
		return "", problems.ToAggregate()
	}
	selector, err := metav1.LabelSelectorAsSelector(&question.Selector)
	if err != nil {
		return "", err
	}
	return strconv.FormatBool(selector.Matches(labels.Set(question.Labels))), nil
}
