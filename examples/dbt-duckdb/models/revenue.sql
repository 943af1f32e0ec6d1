-- Live orders with the lake's names of items: a table in DuckDB's file.
select item, name, count(*) as orders, sum(amount) as amount
from {{ source('live', 'orders') }} join {{ source('lake', 'items') }} using (item)
group by item, name
