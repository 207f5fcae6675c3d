-- int
rank()
dense_rank()

-- bigint
count(*)
sum({int})

-- string
max({string})

-- date
min({date})

-- real
percent_rank()
