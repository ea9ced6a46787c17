"""A schema template to fill in by hand."""

TEMPLATE = """\
# What the columns of your tables are. Everything in here is public: it is kept with the settings of a store.
# Write down what you know about such tables in general. Never take it from private rows.

# Which column holds the label, and all labels that can occur.
label: {column: diagnosis, classes: [healthy, ill]}
# Whose row it is (one person may have many), and your own id of the row. Leave them out if there are none.
owner: patient
record_id: visit
# Texts that stand for a gap.
blanks: ["", "?"]

columns:
  # A number: what is beyond the bounds is clipped. Knots are values at which its effect may change, such as ages that
  # matter; without them there are 12 pieces of equal length.
  age: {kind: number, bounds: [0, 110], knots: [18, 30, 45, 60, 75]}
  # A number with a long tail: pieces of equal ratio.
  income: {kind: number, bounds: [0, 1000000], scale: log}
  # A gap has a place of its own. Or it becomes a value (missing: 120), or is refused (missing: refuse).
  pressure: {kind: number, bounds: [60, 240], missing: refuse}
  # A category: every listed value has a place, and all others share one.
  ward: {kind: category, values: [surgery, medicine, emergency]}
  # A category with an order: neighbours in the list are similar.
  pain: {kind: ordered, values: [none, mild, strong, unbearable]}
  # Yes or no, true or false, 1 or 0; or in other words.
  smoker: {kind: yesno}
  insured: {kind: yesno, yes: [ja], no: [nein]}
  # A day.
  admitted: {kind: date, bounds: [2020-01-01, 2030-12-31]}
  # A text, as a public model sees it: a name that sentence-transformers knows, or a folder. The width is the length
  # of its vectors.
  # complaint: {kind: text, extractor: all-MiniLM-L6-v2, width: 384}
  # A column that plays no part. A column that is not listed at all is refused.
  remarks: {kind: ignored}
"""
