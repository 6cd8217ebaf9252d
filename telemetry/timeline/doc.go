// Package timeline renders records of handoffs for people: a table of many, and for one a timeline of
// its stages on a common axis.
//
// [Table] and [Draw] write plain text of at most Style.Width columns. With Style.Color they colour by
// who did it: the prefill worker, the decode worker, the gateway. With Style.Blocks bars are drawn in
// block characters, else in ASCII. What a record says is not trusted: texts are cut and control
// characters dropped.
package timeline
