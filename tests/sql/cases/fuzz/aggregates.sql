-- bigint
count(*)
count(*)
count(*)
count(*)
count(*)
count(*)
count(*)
count(*)
count({int})
count({string})
count({date})
count(DISTINCT {int})
count(DISTINCT {string})
count(DISTINCT {date})
sum({int})
sum({int})
sum(DISTINCT {int})

-- int
min({int})
max({int})

-- real
sum({real})
sum({real})
sum(DISTINCT {real})
min({real})
max({real})
avg({int})
avg({int})

-- decimal
sum({decimal})
sum({decimal})
sum(DISTINCT {decimal})
min({decimal})
max({decimal})

-- string
min({string})
max({string})

-- date
min({date})
max({date})

-- timestamp
min({timestamp})
max({timestamp})

-- bool
bool_or({condition})
every({condition})

-- array
sort_array(collect_set({int}))
sort_array(collect_set({int}))
array_sort(collect_list({int}))

-- texts
sort_array(collect_set({string}))
array_sort(collect_list({string}))

-- struct
max(struct({int}, {string}))
