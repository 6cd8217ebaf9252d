// Package page writes charts and tables as one HTML file that needs nothing
// else: style, script and data are in it, and a policy in its head forbids it to
// load anything. It knows what a chart looks like, not what is drawn.
//
//	p := page.Page{Title: "Run", Sections: []page.Section{{Title: "Latency", Charts: charts}}}
//	err := p.Write(w)
//
// Tables and figures are plain HTML and can be read without a script. Charts are
// drawn by the script as SVG: tooltips follow the mouse or the arrow keys, a
// drag, + and - zoom, names in the legend turn series off, and charts of one
// Group share what part of the horizontal axis they show. Colours are those of
// Okabe and Ito, which people with colour-blindness can tell apart; series
// also differ in dashes.
//
// The same page gives the same bytes.
package page
