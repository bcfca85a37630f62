// Counts the probes of each test of the conformance suite. If WEIR_WITHOUT_SCTP is set, leaves out the probes of SCTP.
//
// `cargo xtask cluster conformance` adds this file to a copy of the suite, in the package of PokeServer. Tests run one
// after the other, so the counters need no lock.
package kubernetes

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/sets"
)

var made, leftOut int

// leavesOut counts a probe, and says whether to leave it out.
func leavesOut(protocol string) bool {
	if protocol == "sctp" && os.Getenv("WEIR_WITHOUT_SCTP") != "" {
		leftOut++
		return true
	}
	made++
	return false
}

// RecordProbes appends the test's result to the file that WEIR_RESULTS names. The suite's report counts the tests in
// skipTests as skipped, unless they fail: a test without all of its probes has not passed.
func RecordProbes(t *testing.T, name string, skipTests sets.Set[string]) {
	if leftOut > 0 {
		skipTests.Insert(name)
	}
	line, err := json.Marshal(map[string]any{"name": name, "failed": t.Failed(), "made": made, "leftOut": leftOut})
	require.NoError(t, err)
	file, err := os.OpenFile(os.Getenv("WEIR_RESULTS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	defer file.Close()
	_, err = file.Write(append(line, '\n'))
	require.NoError(t, err)
	made, leftOut = 0, 0
}
