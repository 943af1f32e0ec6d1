-- A table that Spark creates in the live server, and replaces in each run.
select item, count(*) as orders, sum(amount) as amount from fluss.orders group by item
