package input

import (
	"fmt"
	"strings"
	"testing"
)

func TestPropertiesAreReadAsJavaReadsThem(t *testing.T) {
	list, err := readProperties([]byte("a=1\nb : 2\nc 3\n\td\\ e\\:f = g\\=h\n# x\n! y\ni=j,\\\n   k\r\nl=\\u00e9\\uD83D\\uDE00\\t\\z\nm\nn=\no=p\\\\\nq=r\\\\\\\n s\n=novalue\nr=\\"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		got = append(got, fmt.Sprintf("%q=%q", e.Name, e.Value))
	}
	want := `"a"="1"|"b"="2"|"c"="3"|"d e:f"="g=h"|"i"="j,k"|"l"="é😀\tz"|"m"=""|"n"=""|"o"="p\\"|"q"="r\\s"|""="novalue"|"r"=""`
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
	for _, bad := range []string{"a=\\u12", "a=\\uGGGG", "a=1\na=2"} {
		if _, err := readProperties([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestPlacesOfBrokenJSONAreExact(t *testing.T) {
	for text, want := range map[string]string{
		"{":                                  "line 1, column 2: not JSON: the input ends too early",
		"{\n \"a\": \"é\" x}":                "line 2, column 11: not JSON: an unexpected character after object key:value pair",
		"{\"a\" 1}":                          "line 1, column 6: not JSON: an unexpected character after object key",
		"{\"a\": secret}":                    "line 1, column 7: not JSON: an unexpected character looking for beginning of value",
		"{\"a\": ' '}":                       "line 1, column 7: not JSON: an unexpected character looking for beginning of value",
		"{\"a\"  \"b\"}":                     "line 1, column 7: not JSON: an unexpected character after object key",
		"{\"a\": \"b\",}":                    "line 1, column 11: not JSON: an unexpected character looking for beginning of object key string",
		"{\"a\": \"b\nc\"}":                  "line 1, column 9: not JSON: an unexpected character in string literal",
		"{\"a\": \"b\"} {\"c\": \"d\"}":      "line 1, column 12: not JSON: an unexpected character after top-level value",
		"{\"a\": [1]}":                       "line 1, column 7: a must be a string, a number, true or false: " + fromConnect,
		"{\"a\":1,\n\t\"a\": 2}":             "line 2, column 7: a occurs twice",
		"{\"a\": 1, \"config\": {\"a\": 2}}": "line 1, column 26: a occurs twice",
		"{\"config\": {\"a\": 1}, \"a\": 2}": "line 1, column 27: a occurs twice",
		"{\"a\": \"\\ud83d\\ude00\"}":        "a string has an escape or a control character that convert cannot read: write the character itself",
	} {
		_, err := Read([]byte(text))
		if err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	if _, err := Read([]byte("[1]")); err == nil || err.Error() != "line 1, column 1: must be an object with the options of one connector: "+fromConnect {
		t.Errorf("a list: %v", err)
	}
}
